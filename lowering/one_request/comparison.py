"""Comparison of a program over ragged batches with eager mode, also in shapes that the exporter excludes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import cast

import torch
from torch.utils import _pytree as pytree
from torch.utils._sympy.value_ranges import ValueRanges

from ...backends.differences import allowed_rounding
from ...bucketing.padding import torch_dtype
from ...bucketing.shapes import TensorSpec
from ...config.schema import ServingConfig
from ..eager_call import call_eagerly
from ..errors import FailsEagerly, LoweringError
from ..exporter.export import bind_arguments
from ..exporter.random_values import ANY_ID, HUGE, VALUE_KINDS, is_close, random_requests, random_values_of
from ..exporter.shape_conditions import ShapeConditions
from ..ragged.batched import has_batch, has_time


class DiffersAtLength(LoweringError):
    """A program with an output that differs from the model's for a request of some number of timesteps."""

    def __init__(self, message: str, length: int, *, in_size: bool) -> None:
        super().__init__(message)
        self.length = length
        self.in_size = in_size


Run = Callable[..., Sequence[torch.Tensor]]
Request = Sequence[torch.Tensor]


@dataclass(frozen=True)
class _OddRequest:
    """A request of one kind of values, with the model's answer in eager mode."""

    kind: str
    length: int
    request: Request
    answer: Sequence[torch.Tensor]


@dataclass(frozen=True)
class Comparison:
    """A program beside the model that it was made of."""

    model: torch.nn.Module
    config: ServingConfig
    exported: torch.export.ExportedProgram
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]

    def check(self, run: Run, lengths: Sequence[int], time: int) -> None:
        """Compare a batch padded to `time` timesteps with each request alone in eager mode.

        `run` is the program as a function. The padding holds large numbers.

        Raises `DiffersAtLength`: an output differs.
        Raises `LoweringError`: the program fails, or the model fails on a request.
        """
        if not has_batch(self.inputs) and len(lengths) > 1:
            for length in lengths:
                self.check(run, [length], time)
            return
        rng = torch.Generator().manual_seed(0)
        requests = random_requests(self.inputs, lengths, rng)
        with torch.no_grad():
            results = self._answers(run, requests, lengths, time, rng)
            for row, (length, request) in enumerate(zip(lengths, requests, strict=True)):
                for spec, ours, theirs in zip(self.outputs, results, self._alone(request, length), strict=True):
                    self._compare(spec, ours, theirs, row, length)

    def check_values(self, run: Run, lengths: Sequence[int], time: int) -> None:
        """Compare requests with values of each kind, in one batch with a request of values of 1e30.

        A request that the model does not take in eager mode is left out.

        Raises `LoweringError`: an output differs; names the kind of values.
        """
        rng = torch.Generator().manual_seed(1)
        with torch.no_grad():
            answered = list(self._odd_requests(lengths, rng))
            batches = [answered] if has_batch(self.inputs) else [[row] for row in answered]
            for rows in filter(None, batches):
                requests, own = [row.request for row in rows], [row.length for row in rows]
                results = self._answers(run, requests, own, time, rng)
                for place, row in enumerate(rows):
                    self._compare_odd(results, place, row)

    def _odd_requests(self, lengths: Sequence[int], rng: torch.Generator) -> Iterator[_OddRequest]:
        """Draw requests with values of each kind, without those that the model does not take."""
        for kind, length in zip(VALUE_KINDS, cycle(lengths[-2:])):
            request = [random_values_of(kind, s, s.item_sizes(length), rng, ANY_ID) for s in self.inputs]
            if (answer := self._answer_or_none(request, length)) is not None:
                yield _OddRequest(kind, length, request, answer)

    def _answer_or_none(self, request: Request, length: int) -> list[torch.Tensor] | None:
        try:
            return self._alone(request, length)
        except LoweringError:
            return None

    def _compare_odd(self, results: Sequence[torch.Tensor], place: int, row: _OddRequest) -> None:
        if row.kind == HUGE:
            return
        alone = row.answer
        rounding = allowed_rounding(lambda x: self._answer_or_none(x, row.length) or alone, row.request, alone)
        for spec, ours, theirs, allowed in zip(self.outputs, results, alone, rounding, strict=True):
            part, own = _aligned(spec, ours, theirs, place, row.length)
            if part.shape != own.shape or not is_close(part, own, allowed):
                raise LoweringError(
                    f"output {spec.name} of a batch differs from that of a request alone ({row.length} timesteps) "
                    f"for values {row.kind}"
                )

    def _compare(self, spec: TensorSpec, ours: torch.Tensor, theirs: torch.Tensor, row: int, length: int) -> None:
        part, own = _aligned(spec, ours, theirs, row, length)
        if own.shape != part.shape:
            form = f"has the shape {list(own.shape)} for {length} timesteps, not {spec.item_sizes(length)}"
            raise DiffersAtLength(f"output {spec.name} {form}{self._undeclared_values()}", length, in_size=True)
        if not is_close(part, own):
            raise DiffersAtLength(
                f"output {spec.name} of a batch differs from that of a request alone ({length} timesteps): the model "
                "does something else at some numbers of timesteps, such as a branch on the number or another last step "
                "of a loop, or torch has another kernel for several rows",
                length,
                in_size=False,
            )

    def _answers(
        self, run: Run, requests: Sequence[Request], lengths: Sequence[int], time: int, rng: torch.Generator
    ) -> Sequence[torch.Tensor]:
        padded = [_padded(spec, [r[i] for r in requests], time, rng) for i, spec in enumerate(self.inputs)]
        try:
            return run(*padded, torch.tensor(lengths)) if has_time(self.inputs) else run(*padded)
        except Exception as error:
            raise LoweringError(
                f"the program of {type(self.model).__name__} fails on a batch of {list(padded[0].shape)}: "
                f"{type(error).__name__}: {str(error).rstrip('.')}{self._unknown_ranges()}"
            ) from error

    def _alone(self, request: Request, length: int) -> list[torch.Tensor]:
        pairs = zip(request, self.inputs, strict=True)
        copies = ((tensor.clone(), spec.batch_dim) for tensor, spec in pairs)  # the model may write into them
        batch = [tensor if dim is None else tensor.unsqueeze(dim) for tensor, dim in copies]
        try:
            answer = call_eagerly(self.model, bind_arguments(self.config, batch, torch.tensor([length])))
        except Exception as error:
            raise FailsEagerly(
                f"{type(self.model).__name__} fails in eager mode on one request of {length} timesteps: "
                f"{type(error).__name__}: {str(error).rstrip('.')}{self._unknown_ranges()}"
            ) from error
        return [leaf for leaf in pytree.tree_leaves(answer) if isinstance(leaf, torch.Tensor)]

    def _undeclared_values(self) -> str:
        """Return what to declare if the size of an output depends on values, of which nothing is known."""
        names = [s.name for s in self.inputs if s.dtype in ("bool", "int32", "int64") and s.value_range is None]
        if not names:
            return ""
        return (
            f". If the size depends on the values of {', '.join(names)}, as in (ids != 0).sum(1), declare those that "
            "requests have by `range` under `inputs`: for ids [1, 4999], for a mask [1, 1]"
        )

    def _unknown_ranges(self) -> str:
        """Return what to declare if integers were drawn of which nothing is known."""
        unknown = [s.name for s in self.inputs if s.dtype == "int64" and s.value_range is None and s.vocabulary is None]
        if not unknown:
            return ""
        return (
            f". Values of 0 to {ANY_ID - 1} were drawn for {', '.join(unknown)}: if it takes others only, write "
            "`range: [least, largest]`, both included, under `inputs`"
        )


def _aligned(
    spec: TensorSpec, ours: torch.Tensor, theirs: torch.Tensor, row: int, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the part of a batch's output that is of one request, and the output of that request alone."""
    part = ours if spec.batch_dim is None else ours.select(spec.batch_dim, row)
    for dim, size in enumerate(spec.item_sizes(length)):
        part = part.narrow(dim, 0, size)
    is_batch = theirs.dim() == part.dim() + 1  # one timestep may leave no dimension
    return part, theirs.select(cast(int, spec.batch_dim), 0) if is_batch else theirs


def _padded(spec: TensorSpec, items: Sequence[torch.Tensor], time: int, rng: torch.Generator) -> torch.Tensor:
    """Pad requests with numbers of about 1000; or in an input of integers by its `pad_value`, as serving writes it."""
    sizes, dtype = spec.sizes(len(items), time), torch_dtype(spec)
    is_float = dtype.is_floating_point
    padding = torch.randn(sizes, generator=rng) * 1e3 if is_float else torch.full(sizes, spec.pad_value)
    tensor = padding.to(dtype)
    for row, item in enumerate(items):
        part = tensor if spec.batch_dim is None else tensor.select(spec.batch_dim, row)
        for dim in spec.item_time_dims:
            part = part.narrow(dim, 0, item.shape[dim])
        part.copy_(item)
    return tensor


_MOST_LENGTHS = 8
"""Excluded numbers of timesteps that are compared; a program with more of them keeps its conditions.

Of those that inequations alone exclude, as many are compared, spread over all of them: the exporter excludes all even
numbers for `x[:, : T // 2 * 2]`, because that has gaps in memory if T is odd.
"""
_ROWS = (1, 2, 5)


def include_excluded_shapes(comparison: Comparison, shortest: int) -> None:
    """Drop the conditions of a program that exclude a shape, if it is right in all excluded shapes.

    The exporter assumes that a size is not 1 unless it is a constant, as a size of 1 would be broadcast; so it excludes
    the fewest timesteps of a model with strides.
    """
    conditions = ShapeConditions(comparison.exported, comparison.inputs)
    config, batches = comparison.config, served_batches(comparison.config)
    lengths = range(shortest, config.longest + 1)
    excluded = [time for time in lengths if not all(conditions.holds(batch, time) for batch in batches)]
    failing = {time: [condition for rows in _ROWS for condition in conditions.failing(rows, time)] for time in excluded}
    unequal = [time for time in excluded if all(condition.is_inequation for condition in failing[time])]
    others = [time for time in excluded if time not in unequal]
    if not excluded or len(others) > _MOST_LENGTHS:
        return
    excluding = {condition.text for own in failing.values() for condition in own}
    with contextlib.suppress(LoweringError), _without_conditions(comparison.exported, excluding, shortest):
        run = comparison.exported.module()
        for time in (*others, *_spread(unequal)):
            for rows in _ROWS:
                comparison.check(run, [max(shortest, time - row) for row in range(rows)], time)


def _spread(lengths: Sequence[int]) -> list[int]:
    """Return the first and the last of ascending lengths, and some between them.

    >>> _spread(range(4, 25, 2))
    [4, 6, 10, 12, 16, 18, 22, 24]
    """
    last, gaps = len(lengths) - 1, _MOST_LENGTHS - 1
    places = range(len(lengths)) if last <= gaps else [round(k * last / gaps) for k in range(gaps + 1)]
    return [lengths[place] for place in places]


def served_batches(config: ServingConfig) -> Sequence[int]:
    """Return numbers of rows to evaluate conditions for: they exclude one row or two, or set a bound."""
    return sorted({1, 2, config.grid.batches[-1]})


@contextlib.contextmanager
def _without_conditions(program: torch.export.ExportedProgram, failing: set[str], shortest: int) -> Iterator[None]:
    """Drop conditions, and bounds above the fewest timesteps; an error within restores them."""
    guards, bounds = list(program._guards_code), dict(program._range_constraints)
    program._guards_code = [text for text in guards if text not in failing]
    widened = {symbol: ValueRanges(min(own.lower, shortest), own.upper) for symbol, own in bounds.items()}
    program._range_constraints.update(widened)
    try:
        yield
    except BaseException:
        program._guards_code = guards
        program._range_constraints.update(bounds)
        raise
