"""Sample calls of torch's operator database, and dimensions of their tensors as batch, time and features."""

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

from torchserve_neuron_lstm.bucketing.shapes import TensorSpec

DTYPES = (torch.float32, torch.int64, torch.bool)
Sizes = tuple[Any, ...]
"""Sizes of a request's tensor: numbers, `batch` for the dimension of one row, and `time`."""


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


@dataclass(frozen=True)
class Placement:
    """Roles of the dimensions of each tensor, and the places of the number of timesteps among the arguments."""

    shapes: tuple[Sizes, ...]
    numbers: tuple[int, ...] = ()

    @property
    def has_time(self) -> bool:
        """Whether some tensor has timesteps."""
        return any("time" in shape for shape in self.shapes)

    def specs(self, sample: Sample) -> list[TensorSpec]:
        """Return layouts of inputs; those without a dimension for the rows get one in front."""
        dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in sample.tensors]
        return [
            TensorSpec(f"x{number}", dtype, shape if "batch" in shape else ("batch", *shape))  # type: ignore[arg-type]  # or refused before
            for number, (dtype, shape) in enumerate(zip(dtypes, self.shapes, strict=True))
        ]


def placements(sample: Sample) -> Iterator[list[Placement]]:
    """Yield alternatives, of which the first that eager mode takes is meant.

    Each dimension of the first tensor is the timesteps, with the rows in front or in place of another dimension. Other
    tensors have timesteps where their size is that of the first one's.
    """
    first = sample.tensors[0]
    yield [Placement(tuple(tuple(tensor.shape) for tensor in sample.tensors))]
    for time in range(first.dim()):
        if first.shape[time] < 1:
            continue
        batches: list[int | None] = [None] if first.dim() == 1 else [None, (time + 1) % first.dim()]
        if first.dim() > 2:
            batches.append((time - 1) % first.dim())
        for batch in batches:
            yield [*_alternatives(sample, batch, time)]


def _alternatives(sample: Sample, batch: int | None, time: int) -> Iterator[Placement]:
    first = sample.tensors[0]
    chosen = {time: "time"} | ({} if batch is None else {batch: "batch"})
    own = tuple(chosen.get(dim, size) for dim, size in enumerate(first.shape))
    others = sample.tensors[1:]
    from_right = {dim - first.dim(): name for dim, name in chosen.items()}
    options = [
        tuple(_named(tensor, from_right, first, right=True) for tensor in others),
        tuple(_named(tensor, chosen, first, right=False) for tensor in others),
        tuple(tuple(tensor.shape) for tensor in others),
        tuple(_square(tensor, first.shape[time]) for tensor in others),
    ]
    numbers = tuple(
        place for place, leaf in enumerate(sample.leaves) if type(leaf) is int and leaf == first.shape[time] != 0
    )
    yield from dict.fromkeys(Placement((own, *shapes), places) for shapes in options for places in ((), numbers))


def _square(tensor: torch.Tensor, timesteps: int) -> Sizes:
    """Return sizes with timesteps in up to two dimensions, as a matrix of weights between timesteps has them."""
    if list(tensor.shape).count(timesteps) > 2:
        return tuple(tensor.shape)
    return tuple("time" if size == timesteps else size for size in tensor.shape)


def _named(tensor: torch.Tensor, chosen: dict[int, str], first: torch.Tensor, *, right: bool) -> Sizes:
    shape: list[Any] = list(tensor.shape)
    for dim, name in chosen.items():
        there = -len(shape) <= dim if right else dim < len(shape)
        if there and shape[dim] == first.shape[dim] and name not in shape:
            shape[dim] = name
    return tuple(shape)
