"""Windows over all timesteps, as in `F.max_pool1d(x, x.size(2))` and `F.unfold(x, (3, x.size(3)))`.

Torch's operators take windows of fixed sizes only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..packing.padded_batch import same_size

_REDUCTIONS: dict[str, Callable[..., torch.Tensor]] = {"max": torch.amax, "avg": torch.mean}
_NAMES = {
    "max": ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices"),
    "avg": ("input", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"),
}
_UNFOLD_NAMES = ("input", "kernel_size", "dilation", "padding", "stride")
_NEUTRAL = {"kernel_size": 1, "stride": 1, "padding": 0, "dilation": 1}
"""Window that leaves a dimension as it is."""


def pooled_over_time(name: str, function: Callable[..., torch.Tensor], args: Any, kwargs: Any) -> Any:
    """Call a pooling function whose window is as large as the input; NotImplemented if it is not.

    `name` is that of the function, such as `max_pool1d`. The window has one place, so that the stride does not matter.

    >>> x = torch.arange(6.0).reshape(1, 2, 3)
    >>> pooled_over_time("max_pool1d", torch.nn.functional.max_pool1d, (x, 3), {})
    NotImplemented
    """
    kind, rank = name[:3], int(name[-2])
    given = {**dict(zip(_NAMES[kind], args, strict=False)), **kwargs}
    window = _sizes(given["kernel_size"], rank)
    symbolic = [place for place, size in enumerate(window) if isinstance(size, torch.SymInt)]
    if not symbolic or given.get("return_indices") or given.get("divisor_override"):
        return NotImplemented
    x: torch.Tensor = given["input"]
    whole = all(same_size(window[place], x.shape[place - rank]) for place in symbolic)
    if not whole or any(_changes(given, place, rank) for place in symbolic):
        return NotImplemented
    x = _REDUCTIONS[kind](x, [place - rank for place in symbolic], keepdim=True)
    rest = {option: _without(given, option, symbolic, rank) for option in _NEUTRAL if option in given}
    if len(symbolic) == rank or all(_is_neutral(rest, place, rank) for place in range(rank)):
        return x
    return function(x, **{**{option: value for option, value in given.items() if option != "input"}, **rest})


def windows_over_time(function: Callable[..., torch.Tensor], args: Any, kwargs: Any) -> Any:
    """Cut x[B, C, H, W] into windows, as `F.unfold` does, of which one dimension is as large as that of x.

    NotImplemented for other windows, and for `Tensor.unfold`.
    """
    if function is not torch.nn.functional.unfold:
        return NotImplemented
    given = {**dict(zip(_UNFOLD_NAMES, args, strict=False)), **kwargs}
    x, window = given["input"], _sizes(given["kernel_size"], 2)
    symbolic = [place for place, size in enumerate(window) if isinstance(size, torch.SymInt)]
    changes = any(_changes(given, place, 2) for place in (0, 1))
    if len(symbolic) != 1 or x.dim() != 4 or changes or not same_size(window[symbolic[0]], x.shape[symbolic[0] - 2]):
        return NotImplemented
    cut = 1 - symbolic[0]
    windows = x.unfold(2 + cut, window[cut], _sizes(given.get("stride", 1), 2)[cut])  # its elements are last
    order = (0, 1, 4, 3, 2) if cut == 0 else (0, 1, 2, 4, 3)
    return windows.permute(order).flatten(1, 3)


def _sizes(value: Any, rank: int) -> list[Any]:
    """Return a number for each dimension; one number holds for all of them."""
    sizes = list(value) if isinstance(value, Sequence) else [value]
    return sizes if len(sizes) == rank else sizes * rank


def _changes(given: dict[str, Any], place: int, rank: int) -> bool:
    """Whether padding or gaps in the window change what one over the whole dimension reads."""
    return any(
        _sizes(given.get(option, _NEUTRAL[option]), rank)[place] != _NEUTRAL[option]
        for option in ("padding", "dilation")
    )


def _without(given: dict[str, Any], option: str, reduced: Sequence[int], rank: int) -> Any:
    """Return an option of the window, without the dimensions that are reduced already."""
    value = given["kernel_size"] if option == "stride" and not given[option] else given[option]
    return [_NEUTRAL[option] if place in reduced else size for place, size in enumerate(_sizes(value, rank))]


def _is_neutral(options: dict[str, Any], place: int, rank: int) -> bool:
    return all(value[place] == _NEUTRAL[option] for option, value in options.items())
