"""Sample calls of torch's operator database: functions of tensors whose other arguments are fixed."""

from __future__ import annotations

import sys
import types
import unittest
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.utils import _pytree as pytree

DTYPES = (torch.float32, torch.int64, torch.bool)


@dataclass(frozen=True)
class Sample:
    """A call of an operator: the tensors among its arguments, and the numbers."""

    operator: str
    function: Callable[..., Any]
    leaves: tuple[Any, ...]
    tree: pytree.TreeSpec

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All tensors, in order."""
        return [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]

    def call(self, tensors: Sequence[torch.Tensor], sizes: Mapping[int, Any]) -> Any:
        """Call the operator with other tensors, and with other numbers at some places of the leaves."""
        others = iter(tensors)
        leaves = [next(others) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        for place, size in sizes.items():
            leaves[place] = size
        value, args, kwargs = pytree.tree_unflatten(leaves, self.tree)
        return self.function(value, *args, **kwargs)


@cache
def operators() -> dict[str, Any]:
    """Return the entries of the database by name."""
    # Torch's own test cases need this package; the database needs only that there is one.
    stand_in = types.ModuleType("expecttest")
    stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]  # a module made here
    sys.modules.setdefault("expecttest", stand_in)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return {entry.full_name: entry for entry in op_db}


def samples(name: str, dtype: torch.dtype) -> Iterator[Sample]:
    """Yield the sample calls of an operator whose first tensor has dimensions."""
    entry = operators()[name]
    if dtype not in entry.dtypes:
        return
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(entry.sample_inputs("cpu", dtype))
    for sample in found:
        leaves, tree = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        leaves = [leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if tensors and tensors[0].layout is torch.strided and tensors[0].dim():
            yield Sample(name, entry.op, tuple(leaves), tree)
