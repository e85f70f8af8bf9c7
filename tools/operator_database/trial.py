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
from torchserve_neuron_lstm.lowering.ragged.value import Value

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
        fitting = next((item for item in alternatives if _fits(sample, item)), None)
        if fitting is None:
            continue
        others = [n for n, shape in enumerate(fitting.shapes) if n and "time" not in shape]
        forms = [frozenset(others)] if not others else [frozenset(others), frozenset[int]()]
        results = [_try(sample, fitting, shared) for shared in forms]
        yield next((r for want in ("wrong", "lowered", "refused") for r in results if r.outcome == want), results[0])


def _inputs(sample: Sample, placement: Placement, timesteps: int, kind: str, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors = [
        resized(tensor, shape, timesteps, generator)
        for tensor, shape in zip(sample.tensors, placement.shapes, strict=True)
    ]
    return [with_kind(tensors[0], kind, generator), *tensors[1:]]


def _alone(sample: Sample, placement: Placement, tensors: Sequence[torch.Tensor], timesteps: Any) -> Any:
    return sample.call(tensors, dict.fromkeys(placement.numbers, timesteps))


def _answer(
    sample: Sample, placement: Placement, tensors: Sequence[torch.Tensor], timesteps: int
) -> list[torch.Tensor] | None:
    """Return what eager mode answers to one request; None if it fails, or answers no tensor."""
    torch.manual_seed(timesteps)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            leaves = pytree.tree_leaves(_alone(sample, placement, [t.clone() for t in tensors], timesteps))
    except Exception:  # noqa: BLE001 - whatever a call raises
        return None
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided]
    return tensors if tensors and len(tensors) == len(leaves) else None


def _fits(sample: Sample, placement: Placement) -> bool:
    lengths = (TIMESTEPS, 40) if placement.has_time else (1,)
    return all(
        _answer(sample, placement, _inputs(sample, placement, length, "sample", 0), length) for length in lengths
    )


def _try(sample: Sample, placement: Placement, shared: frozenset[int]) -> Trial:
    example = _inputs(sample, placement, TIMESTEPS, "sample", 0)
    specs = placement.specs(sample)
    given = [number for number in range(len(specs)) if number not in shared]

    def function(*inputs: torch.Tensor) -> tuple[Any, ...]:
        tensors = list(example)
        timesteps: Any = next(
            (
                x.shape[specs[n].shape.index("time")]
                for n, x in zip(given, inputs, strict=True)
                if "time" in specs[n].shape
            ),
            1,
        )
        for number, x in zip(given, inputs, strict=True):
            tensors[number] = x if "batch" in placement.shapes[number] else x.select(0, 0)
        return tuple(pytree.tree_leaves(_alone(sample, placement, tensors, timesteps)))

    tensors = [_as_input(example[n], placement.shapes[n]) for n in given]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            traced = trace(function, [specs[n] for n in given], tensors)
    except Exception as error:  # noqa: BLE001 - whatever a trace raises
        return Trial(frozenset(), "untraced", f"{type(error).__name__}: {str(error)[:100]}")
    operators = frozenset(
        str(node.target) for node in traced.module.graph.nodes if isinstance(node.target, torch._ops.OpOverload)
    )
    outcome, reason = _compared(sample, placement, given, example, traced)
    return Trial(operators, outcome, reason)


def _as_input(tensor: torch.Tensor, shape: Sequence[Any]) -> torch.Tensor:
    return tensor if "batch" in shape else tensor.unsqueeze(0)


@dataclass(frozen=True)
class _Row:
    timesteps: int
    kind: str
    tensors: list[torch.Tensor]
    answer: list[torch.Tensor]
    exact: list[torch.Tensor] | None
    """The answer in double precision."""


def _rows(
    sample: Sample, placement: Placement, given: Sequence[int], example: Sequence[torch.Tensor], traced: Traced
) -> Iterator[_Row]:
    for turn in range(2):
        for index, kind in enumerate(KINDS):
            if kind in ("not finite", "minus infinity") and sample.operator.startswith(_FINITE_ONLY):
                continue
            timesteps = LENGTHS[(index + turn * 3) % len(LENGTHS)] if placement.has_time else 1
            if not traced.holds(timesteps):
                timesteps = next((n for n in sorted(LENGTHS) if traced.holds(n) and n >= timesteps), TIMESTEPS)
            tensors = _inputs(sample, placement, timesteps, kind, 10 * index + turn)
            tensors = [t if number in given else example[number] for number, t in enumerate(tensors)]
            answer = _answer(sample, placement, tensors, timesteps)
            if answer is not None:
                doubles = [t.double() if t.dtype is torch.float32 else t for t in tensors]
                yield _Row(timesteps, kind, tensors, answer, _answer(sample, placement, doubles, timesteps))


def _compared(
    sample: Sample, placement: Placement, given: Sequence[int], example: Sequence[torch.Tensor], traced: Traced
) -> tuple[str, str]:
    rows = list(_rows(sample, placement, given, example, traced))
    for row in rows[:1]:
        torch.manual_seed(99)
        again = sample.call(row.tensors, dict.fromkeys(placement.numbers, row.timesteps))
        if not _same(row.answer, pytree.tree_leaves(again), row):
            return "unfit", "random"
    try:
        values = _run(sample, placement, given, traced, rows)
    except LoweringError as error:
        return "refused", str(error)
    except Exception as error:  # noqa: BLE001 - a fault of a rule
        return "wrong", f"{type(error).__name__}: {str(error)[:200]}"
    for index, row in enumerate(rows):
        got = [_own(value, index, row.timesteps) for value in values]
        if row.timesteps == 1 and [x.dim() for x in row.answer] != [x.dim() for x in got]:
            continue  # of one timestep, `squeeze` makes another shape; packaging compares such requests with the model
        if (difference := _difference(row.answer, got, row)) is not None:
            return "wrong", f"{difference} at {row.timesteps} timesteps, {row.kind}"
    return "lowered", ""


def _run(
    sample: Sample, placement: Placement, given: Sequence[int], traced: Traced, rows: Sequence[_Row]
) -> list[Value]:
    specs = placement.specs(sample)
    longest = max(row.timesteps for row in rows)
    generator = torch.Generator().manual_seed(7)
    arguments = []
    for number in given:
        shape = specs[number].shape
        parts = [
            _padded(_as_input(row.tensors[number], placement.shapes[number]), shape, longest, generator) for row in rows
        ]
        arguments.append(torch.cat(parts, shape.index("batch")))
    lengths = torch.tensor([row.timesteps for row in rows])
    named = [(name, specs[number]) for name, number in zip(traced.names, given, strict=True)]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run_ragged(traced.module, named, traced.constants, arguments, lengths, longest)


def _padded(tensor: torch.Tensor, shape: Sequence[Any], longest: int, generator: torch.Generator) -> torch.Tensor:
    if "time" not in shape:
        return tensor
    sizes = [longest if size == "time" else own for size, own in zip(shape, tensor.shape, strict=True)]
    full = padding(sizes, tensor.dtype, generator)
    full[tuple(slice(size) for size in tensor.shape)] = tensor
    return full


def _own(value: Value, index: int, timesteps: int) -> torch.Tensor:
    sizes = [int(evaluate(size, timesteps)) for size in value.sizes]
    return value.tensor[index][tuple(slice(size) for size in sizes)]


def _same(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor], row: _Row) -> bool:
    return _difference(first, second, row) is None


def _difference(wanted: Sequence[torch.Tensor], got: Sequence[torch.Tensor], row: _Row) -> str | None:
    for number, (a, b) in enumerate(zip(wanted, got, strict=True)):
        if a.shape != b.shape:
            return f"result {number}: sizes {list(b.shape)} instead of {list(a.shape)}"
        if a.dtype != b.dtype:
            return f"result {number}: {b.dtype} instead of {a.dtype}"
        if not _close(a, b, None if row.exact is None else row.exact[number]):
            where = ~torch.isclose(a.to(torch.complex128), b.to(torch.complex128), equal_nan=True)
            return f"result {number}: {b[where][:3].tolist()} instead of {a[where][:3].tolist()}"
    return None


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
