"""Trials: a sample's graph over a ragged batch, against the operator on each request alone."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchserve_neuron_lstm.lowering.errors import LoweringError
from torchserve_neuron_lstm.lowering.ragged.batched import run_ragged
from torchserve_neuron_lstm.lowering.ragged.sizes import evaluate

from .database import Sample
from .placement import Placement, placements
from .trace import TIMESTEPS, Traced, trace
from .values import KINDS, padding, resized, with_kind

_FINITE_ONLY = ("nn.functional.gelu", "var_mean", "std_mean")
"""Operators whose kernels differ for infinite elements by where these are in a vector of the processor."""
LENGTHS = (17, 1, 40, 3, 24, 2, 9, 33, 5, 64)


@dataclass(frozen=True)
class Trial:
    """The result for one placement of a sample."""

    operators: frozenset[str]
    outcome: str
    """`lowered`, `refused`, `wrong`, or `unfit`: eager mode answers no request of other lengths."""
    reason: str = ""


def trials(sample: Sample) -> Iterator[Trial]:
    """Try every placement of a sample that eager mode takes."""
    for alternatives in placements(sample):
        placed = next((item for item in (_Placed(sample, placement) for placement in alternatives) if item.fits), None)
        if placed is None:
            continue
        others = [n for n, shape in enumerate(placed.shapes) if n and "time" not in shape]
        forms = [frozenset(others)] if not others else [frozenset(others), frozenset[int]()]
        results = [_try(placed, shared) for shared in forms]
        yield next((r for want in ("wrong", "lowered", "refused") for r in results if r.outcome == want), results[0])


@dataclass(frozen=True)
class _Placed:
    """A sample whose dimensions have roles."""

    sample: Sample
    placement: Placement

    @property
    def shapes(self) -> Sequence[Sequence[Any]]:
        return self.placement.shapes

    @property
    def fits(self) -> bool:
        lengths = (TIMESTEPS, 40) if self.placement.has_time else (1,)
        return all(self.answer(self.inputs(length, "sample", 0), length) for length in lengths)

    def inputs(self, timesteps: int, kind: str, seed: int) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        pairs = zip(self.sample.tensors, self.shapes, strict=True)
        first, *others = [resized(tensor, tuple(shape), timesteps, generator) for tensor, shape in pairs]
        return [with_kind(first, kind, generator), *others]

    def call(self, tensors: Sequence[torch.Tensor], timesteps: Any) -> Any:
        return self.sample.call(tensors, dict.fromkeys(self.placement.numbers, timesteps))

    def answer(self, tensors: Sequence[torch.Tensor], timesteps: int) -> list[torch.Tensor] | None:
        """Return what eager mode answers to one request; None if it fails, or answers no tensor."""
        torch.manual_seed(timesteps)
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                leaves = pytree.tree_leaves(self.call([t.clone() for t in tensors], timesteps))
        except Exception:  # noqa: BLE001 - whatever a call raises
            return None
        found = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided]
        return found if found and len(found) == len(leaves) else None

    def as_input(self, tensor: torch.Tensor, number: int) -> torch.Tensor:
        return tensor if "batch" in self.shapes[number] else tensor.unsqueeze(0)


def _try(placed: _Placed, shared: frozenset[int]) -> Trial:
    example = placed.inputs(TIMESTEPS, "sample", 0)
    specs = placed.placement.specs(placed.sample)
    given = [number for number in range(len(specs)) if number not in shared]

    def function(*inputs: torch.Tensor) -> tuple[Any, ...]:
        tensors, timesteps = list(example), None
        for number, x in zip(given, inputs, strict=True):
            tensors[number] = x if "batch" in placed.shapes[number] else x.select(0, 0)
            if timesteps is None and "time" in specs[number].shape:
                timesteps = x.shape[specs[number].shape.index("time")]
        return tuple(pytree.tree_leaves(placed.call(tensors, 1 if timesteps is None else timesteps)))

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            traced = trace(function, [specs[n] for n in given], [placed.as_input(example[n], n) for n in given])
    except Exception as error:  # noqa: BLE001 - whatever a trace raises
        return Trial(frozenset(), "untraced", f"{type(error).__name__}: {str(error)[:100]}")
    targets = (node.target for node in traced.module.graph.nodes)
    operators = frozenset(str(target) for target in targets if isinstance(target, torch._ops.OpOverload))
    return Trial(operators, *_compared(placed, given, example, traced))


@dataclass(frozen=True)
class _Row:
    timesteps: int
    kind: str
    tensors: list[torch.Tensor]
    answer: list[torch.Tensor]
    exact: list[torch.Tensor] | None
    """The answer in double precision."""

    def difference(self, found: Sequence[torch.Tensor]) -> str | None:
        """Return how results differ from the answer by more than rounding; None if they do not."""
        for number, (a, b) in enumerate(zip(self.answer, found, strict=True)):
            if a.shape != b.shape:
                return f"result {number}: sizes {list(b.shape)} instead of {list(a.shape)}"
            if a.dtype != b.dtype:
                return f"result {number}: {b.dtype} instead of {a.dtype}"
            if not _close(a, b, None if self.exact is None else self.exact[number]):
                where = ~torch.isclose(a.to(torch.complex128), b.to(torch.complex128), equal_nan=True)
                return f"result {number}: {b[where][:3].tolist()} instead of {a[where][:3].tolist()}"
        return None


def _rows(placed: _Placed, given: Sequence[int], example: Sequence[torch.Tensor], traced: Traced) -> Iterator[_Row]:
    for turn in range(2):
        for index, kind in enumerate(KINDS):
            if kind in ("not finite", "minus infinity") and placed.sample.operator.startswith(_FINITE_ONLY):
                continue
            timesteps = LENGTHS[(index + turn * 3) % len(LENGTHS)] if placed.placement.has_time else 1
            if not traced.holds(timesteps):
                timesteps = next((n for n in sorted(LENGTHS) if traced.holds(n) and n >= timesteps), TIMESTEPS)
            tensors = placed.inputs(timesteps, kind, 10 * index + turn)
            tensors = [t if number in given else example[number] for number, t in enumerate(tensors)]
            answer = placed.answer(tensors, timesteps)
            if answer is not None:
                doubles = [t.double() if t.dtype is torch.float32 else t for t in tensors]
                yield _Row(timesteps, kind, tensors, answer, placed.answer(doubles, timesteps))


def _compared(
    placed: _Placed, given: Sequence[int], example: Sequence[torch.Tensor], traced: Traced
) -> tuple[str, str]:
    rows = list(_rows(placed, given, example, traced))
    for row in rows[:1]:
        torch.manual_seed(99)
        if row.difference(pytree.tree_leaves(placed.call(row.tensors, row.timesteps))) is not None:
            return "unfit", "random"
    try:
        results = _run(placed, given, traced, rows)
    except LoweringError as error:
        return "refused", str(error)
    except Exception as error:  # noqa: BLE001 - a fault of a rule
        return "wrong", f"{type(error).__name__}: {str(error)[:200]}"
    for row, found in zip(rows, results, strict=True):
        if row.timesteps == 1 and [x.dim() for x in row.answer] != [x.dim() for x in found]:
            continue  # of one timestep, `squeeze` makes another shape; packaging compares such requests with the model
        if (difference := row.difference(found)) is not None:
            return "wrong", f"{difference} at {row.timesteps} timesteps, {row.kind}"
    return "lowered", ""


def _run(placed: _Placed, given: Sequence[int], traced: Traced, rows: Sequence[_Row]) -> list[list[torch.Tensor]]:
    """Run the graph over all rows as one batch, and return the results of each."""
    specs = placed.placement.specs(placed.sample)
    longest = max(row.timesteps for row in rows)
    generator = torch.Generator().manual_seed(7)
    arguments = []
    for number in given:
        shape = specs[number].shape
        inputs = [placed.as_input(row.tensors[number], number) for row in rows]
        parts = [_padded(tensor, shape, longest, generator) for tensor in inputs]
        arguments.append(torch.cat(parts, shape.index("batch")))
    lengths = torch.tensor([row.timesteps for row in rows])
    named = [(name, specs[number]) for name, number in zip(traced.names, given, strict=True)]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = run_ragged(traced.module, named, traced.constants, arguments, lengths, longest)
    return [
        [
            value.tensor[index][tuple(slice(int(evaluate(size, row.timesteps))) for size in value.sizes)]
            for value in values
        ]
        for index, row in enumerate(rows)
    ]


def _padded(tensor: torch.Tensor, shape: Sequence[Any], longest: int, generator: torch.Generator) -> torch.Tensor:
    if "time" not in shape:
        return tensor
    sizes = [longest if size == "time" else own for size, own in zip(shape, tensor.shape, strict=True)]
    full = padding(sizes, tensor.dtype, generator)
    full[tuple(slice(size) for size in tensor.shape)] = tensor
    return full


def _close(wanted: torch.Tensor, got: torch.Tensor, exact: torch.Tensor | None) -> bool:
    """Whether two results differ by rounding only: by no more than the rounding of eager mode where that is large."""
    if not (wanted.is_floating_point() or wanted.is_complex()):
        return torch.equal(wanted, got)
    if not wanted.numel():
        return True
    kind = torch.complex128 if wanted.is_complex() else torch.float64
    finite = wanted.isfinite()
    scale = float(wanted[finite].abs().max()) if finite.any() else 1.0
    rounding = 0.0
    if exact is not None and exact.shape == wanted.shape:
        errors = (wanted.to(kind) - exact.to(kind)).abs()[finite & exact.isfinite()]
        rounding = float(errors.max()) if errors.numel() else 0.0
    return torch.allclose(wanted.to(kind), got.to(kind), 1e-5, 2e-6 * max(scale, 1.0) + 4 * rounding, equal_nan=True)
