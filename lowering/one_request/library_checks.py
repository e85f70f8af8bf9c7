"""Checks of values in torch's own code while forward() is traced, such as those of distributions.

A program has no such checks. Their other side is an error, so the code after them is followed.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from ..errors import LoweringError, calling_line, is_torch_file, source_suffix
from ..exported_graph import each_dim
from ..packing.packed_placeholder import same_size


def truth_that_passes(frame: FrameType) -> bool | None:
    """Return the truth of a tensor with which a check in torch's own code raises nothing; None for other branches."""
    file = frame.f_code.co_filename
    return _checks(file).get(frame.f_lineno) if is_torch_file(file) else None


@cache
def _checks(file: str) -> dict[int, bool]:
    """Return the lines of conditions that only raise, with the truth for which they do not."""
    found: dict[int, bool] = {}
    for node in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8"))):
        if not isinstance(node, ast.If) or not isinstance(node.body[-1], ast.Raise) or _branches(node.body):
            continue
        negated = isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not)
        condition = node.test.operand if isinstance(node.test, ast.UnaryOp) else node.test
        if isinstance(condition, ast.Call):
            lines = range(node.test.lineno, (node.test.end_lineno or node.test.lineno) + 1)
            found.update(dict.fromkeys(lines, negated))
    return found


def _branches(body: list[ast.stmt]) -> bool:
    return any(isinstance(node, (ast.Return, ast.For, ast.While)) for part in body for node in ast.walk(part))


_REDUCTIONS: dict[str, Callable[..., torch.Tensor]] = {"max": torch.amax, "avg": torch.mean}
_NAMES = {
    "max": ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices"),
    "avg": ("input", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"),
}
_UNFOLD_NAMES = ("input", "kernel_size", "dilation", "padding", "stride")
_NEUTRAL = {"kernel_size": 1, "stride": 1, "padding": 0, "dilation": 1}
"""Window that leaves a dimension as it is."""


def pooling_arguments(kind: str, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the arguments of a pooling function, `max` or `avg`, by their names."""
    return {**dict(zip(_NAMES[kind], args, strict=False)), **kwargs}


def pooled_over_time(name: str, function: Callable[..., torch.Tensor], args: Any, kwargs: Any) -> Any:
    """Call a pooling function whose window is as large as the input; NotImplemented if it is not.

    `name` is that of the function, such as `max_pool1d`. The window has one place, so that the stride does not matter.

    >>> x = torch.arange(6.0).reshape(1, 2, 3)
    >>> pooled_over_time("max_pool1d", torch.nn.functional.max_pool1d, (x, 3), {})
    NotImplemented
    """
    kind, rank = name[:3], int(name[-2])
    given = pooling_arguments(kind, args, kwargs)
    window = each_dim(given["kernel_size"], rank)
    symbolic = [place for place, size in enumerate(window) if isinstance(size, torch.SymInt)]
    if not symbolic or given.get("return_indices") or given.get("divisor_override"):
        return NotImplemented
    x: torch.Tensor = given["input"]
    whole = all(same_size(window[place], x.shape[place - rank]) for place in symbolic)
    if not whole or any(_changes(given, place, rank) for place in symbolic):
        return NotImplemented
    x = _REDUCTIONS[kind](x, [place - rank for place in symbolic], keepdim=True)
    rest = {option: _without(given, option, symbolic, rank) for option in _NEUTRAL if option in given}
    if all(value[place] == _NEUTRAL[option] for option, value in rest.items() for place in range(rank)):
        return x
    return function(x, **{**{option: value for option, value in given.items() if option != "input"}, **rest})


def windows_over_time(function: Callable[..., torch.Tensor], args: Any, kwargs: Any) -> Any:
    """Cut x[B, C, H, W] as `F.unfold` does, where a dimension of the window is all of x; else NotImplemented."""
    if function is not torch.nn.functional.unfold:
        return NotImplemented
    given = {**dict(zip(_UNFOLD_NAMES, args, strict=False)), **kwargs}
    x, window = given["input"], each_dim(given["kernel_size"], 2)
    symbolic = [place for place, size in enumerate(window) if isinstance(size, torch.SymInt)]
    changes = any(_changes(given, place, 2) for place in (0, 1))
    if len(symbolic) != 1 or x.dim() != 4 or changes or not same_size(window[symbolic[0]], x.shape[symbolic[0] - 2]):
        return NotImplemented
    cut = 1 - symbolic[0]
    windows = x.unfold(2 + cut, window[cut], each_dim(given.get("stride", 1), 2)[cut])  # its elements are last
    order = (0, 1, 4, 3, 2) if cut == 0 else (0, 1, 2, 4, 3)
    return windows.permute(order).flatten(1, 3)


def _changes(given: dict[str, Any], place: int, rank: int) -> bool:
    """Whether padding or gaps in the window change what one over the whole dimension reads."""
    return any(
        each_dim(given.get(option, _NEUTRAL[option]), rank)[place] != _NEUTRAL[option]
        for option in ("padding", "dilation")
    )


def _without(given: dict[str, Any], option: str, reduced: Sequence[int], rank: int) -> Any:
    """Return an option of the window, without the dimensions that are reduced already."""
    value = given["kernel_size"] if option == "stride" and not given[option] else given[option]
    return [_NEUTRAL[option] if place in reduced else size for place, size in enumerate(each_dim(value, rank))]


def embedding_bag(
    input: torch.Tensor,  # noqa: A002 - torch's names
    weight: torch.Tensor,
    offsets: Any,
    mode: str,
    per_sample_weights: torch.Tensor | None,
    padding_idx: int | None,
    max_norm: float | None,
    **_: Any,
) -> torch.Tensor:
    """Reduce the embeddings of ids[N, K] to [N, F]; those of `padding_idx` do not count.

    Raises `LoweringError`: the bags have sizes of their own, or embeddings are normalised when they are read.
    """
    if input.dim() != 2 or offsets is not None or max_norm is not None:
        raise LoweringError(
            f"embedding_bag takes offsets or max_norm{source_suffix(calling_line())}: give it ids[N, K], padded with "
            "padding_idx to the same size"
        )
    found = torch.nn.functional.embedding(input, weight)
    real = torch.ones_like(input, dtype=torch.bool) if padding_idx is None else input != padding_idx % weight.shape[0]
    real = real.unsqueeze(2)
    if mode == "max":
        highest = found.masked_fill(~real, float("-inf")).amax(1)
        return torch.where(real.any(1), highest, torch.zeros_like(highest))
    if per_sample_weights is not None:
        found = found * per_sample_weights.unsqueeze(2)
    total = found.masked_fill(~real, 0.0).sum(1)
    return total if mode == "sum" else total / real.sum(1).clamp(min=1)
