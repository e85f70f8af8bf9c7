"""Comparison of new weights with those that programs were compiled for."""

from __future__ import annotations

from collections.abc import Mapping

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
    found, expected = ({name: describe_tensor(own) for name, own in weights.items()} for weights in (given, known))
    return [
        f"{name}: {found.get(name, 'missing')}, expected {expected.get(name, 'no weight of this name')}"
        for name in {**known, **given}
        if found.get(name) != expected.get(name)
    ]
