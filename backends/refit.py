"""Comparison of new weights with those that programs were compiled for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from .signature import describe_tensor


def refit_mismatches(known: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor]) -> list[str]:
    """List the names, shapes and dtypes in which `given` differs from `known`; empty if it can replace it.

    >>> known = {"weight": torch.zeros(2, 3), "bias": torch.zeros(3)}
    >>> for line in refit_mismatches(known, {"weight": torch.zeros(2, 4), "scale": torch.zeros(3)}):
    ...     print(line)
    weight: float32 [2, 4], expected float32 [2, 3]
    bias: missing, expected float32 [3]
    scale: float32 [3], expected no weight of this name
    """
    return [
        *_mismatches(known, given),
        *(
            f"{name}: {describe_tensor(tensor)}, expected no weight of this name"
            for name, tensor in given.items()
            if name not in known
        ),
    ]


def _mismatches(known: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor]) -> Iterator[str]:
    for name, tensor in known.items():
        found = describe_tensor(given[name]) if name in given else "missing"
        if found != describe_tensor(tensor):
            yield f"{name}: {found}, expected {describe_tensor(tensor)}"
