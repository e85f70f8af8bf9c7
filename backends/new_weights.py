"""Whether other weights can take the place of those that programs were compiled for: without compiling again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch


def differences(known: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor]) -> list[str]:
    """What keeps `given` from taking the place of `known`: a line for each name, shape or dtype; empty if nothing does.

    >>> known = {"weight": torch.zeros(2, 3), "bias": torch.zeros(3)}
    >>> for line in differences(known, {"weight": torch.zeros(2, 4), "scale": torch.zeros(3)}):
    ...     print(line)
    weight: float32 [2, 4], expected float32 [2, 3]
    bias: missing, expected float32 [3]
    scale: float32 [3], expected none of this name
    """
    return [
        *_of_known(known, given),
        *(f"{name}: {_words(given[name])}, expected none of this name" for name in given if name not in known),
    ]


def _of_known(known: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor]) -> Iterator[str]:
    for name, tensor in known.items():
        found = _words(given[name]) if name in given else "missing"
        if found != _words(tensor):
            yield f"{name}: {found}, expected {_words(tensor)}"


def _words(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
