"""Chunked execution of a plan: time is cut into chunks, and the carried values go from call to call.

A row group of a batch is executed by itself, with its own buffers: one long sequence among many short ones needs
memory for the few rows beside it, not for all. The rows of a group share the buffers, the longest first, so that a call
is a rectangle of them: some rows by some timesteps. A row that ends within a call keeps the state of its own last step,
because the programs take lengths. The rest of the rectangle beside the call's own rows (a fixed shape may be larger) is
computed and dropped.

A batch may resume sequences from carried values, and returns the carried values for the next call, as sessions need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from operator import lt

import torch

from .errors import InvariantError
from .execute import Pad, Tensors, check_outputs
from .padding import lengths_tensor, pad, torch_dtype, unpad, unpadded_views
from .plan import Plan, ProgramCall
from .row_groups import row_groups
from .shapes import Bucket, CarriedValue, ProgramRole, TensorSpec

RunProgram = Callable[[ProgramRole, Bucket, list[torch.Tensor]], Sequence[torch.Tensor]]
"""Run one of the programs for a bucket.

Each takes tensors in this order: inputs (`start` and `head` only those without time), lengths[B] (`chunk`: within the
chunk), and except for `start` the carried values. `chunk` returns the outputs that have time, then the carried values;
`head` the other outputs; `start` the carried values that have no `fill`."""

RunChain = Callable[
    [Sequence[Bucket], Sequence[list[torch.Tensor]], list[torch.Tensor]], Sequence[Sequence[torch.Tensor]]
]
"""Run several chunks in sequence; returns the results of each.

The arguments are the buckets, the inputs of each without the carried values, and the carried values of the first. Each
later one takes the first rows of the values that the one before returned."""


def sequential_chain(run: RunProgram) -> RunChain:
    """Return a function that chains chunks on a program without chained calls."""

    def chain(
        buckets: Sequence[Bucket], calls: Sequence[list[torch.Tensor]], carried: list[torch.Tensor]
    ) -> Sequence[Sequence[torch.Tensor]]:
        all_results = []
        for bucket, call in zip(buckets, calls):
            results = run("chunk", bucket, [*call, *(value[: bucket.batch] for value in carried)])
            all_results.append(results)
            carried = list(results[len(results) - len(carried) :])
        return all_results

    return chain


@dataclass(frozen=True)
class ChunkSignature:
    """Layouts of the inputs, outputs and carried values of a chunked model."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    carried: tuple[CarriedValue, ...]

    @cached_property
    def step_outputs(self) -> tuple[TensorSpec, ...]:
        """Outputs of the `chunk` program."""
        return tuple(spec for spec in self.outputs if spec.time_dim is not None)

    @cached_property
    def final_outputs(self) -> tuple[TensorSpec, ...]:
        """Outputs of the `head` program."""
        return tuple(spec for spec in self.outputs if spec.time_dim is None)

    @cached_property
    def output_order(self) -> tuple[int, ...]:
        """Index of each output among the step outputs and, after them, the final outputs."""
        timed, final = iter(range(len(self.step_outputs))), iter(range(len(self.step_outputs), len(self.outputs)))
        return tuple(next(final if spec.time_dim is None else timed) for spec in self.outputs)

    @cached_property
    def start_indices(self) -> tuple[int, ...]:
        """Indices of the carried values that the `start` program computes."""
        return tuple(index for index, value in enumerate(self.carried) if value.fill is None)


@dataclass(frozen=True)
class ResumedState:
    """State from which some requests of a batch resume; the others start a sequence."""

    rows: tuple[int, ...]
    """Indices of these requests in the batch."""
    offsets: tuple[int, ...]
    """Number of earlier timesteps of each."""
    carried: Tensors
    """Carried values in the order of `ChunkSignature.carried`, each with its rows in the order of `rows`."""


def execute_chunks(
    plan: Plan,
    requests: Sequence[Sequence[torch.Tensor]],
    lengths: Sequence[int],
    signature: ChunkSignature,
    run: RunProgram,
    pad: Pad = pad,
    chain: RunChain | None = None,
    resumed: ResumedState | None = None,
) -> tuple[list[Tensors], Tensors]:
    """Return the outputs of all requests, in their order, and the carried values after them if some requests resume.

    A request has one tensor per input, of the input's `item_shape`, and likewise one per output. The outputs of a batch
    may share memory. `chain` runs consecutive chunks faster than `run`, which is used if it is None.

    With `resumed`, `lengths` exclude earlier timesteps, and outputs without time are those of a sequence that ends with
    the request. The carried values are in the order of `signature.carried`, the rows of each in that of the requests.

    Raises `ValueError`: a request's tensor has not the shape or dtype of its input.
    Raises `InvariantError`: the plan leaves a timestep out, or a program's outputs are not as declared.
    """
    if not requests:
        return [], ()
    _check_plan(plan, lengths)
    groups = row_groups(plan)
    outputs: list[Tensors] = [()] * len(requests)
    carries: list[Tensors] = []
    for group in groups:
        resumed_rows = resumed if resumed is None or len(groups) == 1 else _resumed_of(resumed, group)
        batch = ChunkedExecution(group, requests, lengths, signature, run, pad, resumed_rows, chain)
        for row, own in batch.results():
            outputs[row] = tuple([own[index] for index in signature.output_order])
        if resumed is not None:
            carries.append(batch.carry())
        del batch  # before the next group's buffers are made
    return outputs, _carry_in_order(carries, groups)


class ChunkedExecution:
    """Mutable buffers of one row group: everything that its calls read and write."""

    def __init__(
        self,
        plan: Plan,
        requests: Sequence[Sequence[torch.Tensor]],
        lengths: Sequence[int],
        signature: ChunkSignature,
        run: RunProgram,
        pad: Pad = pad,
        resumed: ResumedState | None = None,
        chain: RunChain | None = None,
    ) -> None:
        order = plan.rows
        self.plan, self.signature, self.run, self.resumed = plan, signature, run, resumed
        self.chain = chain or sequential_chain(run)
        self.index = {row: index for index, row in enumerate(order)}
        self.lengths = [lengths[row] for row in order]
        self.total_lengths = list(self.lengths)
        for row, offset in zip(resumed.rows, resumed.offsets) if resumed else ():
            self.total_lengths[self.index[row]] += offset
        rows = max(self.index[call.rows[0]] + call.bucket.batch for call in (*plan.calls, *plan.heads))
        self.size = Bucket(rows, max(call.start + call.bucket.length for call in plan.calls))
        self.inputs = [
            pad([requests[row][position] for row in order], spec, self.size)
            for position, spec in enumerate(signature.inputs)
        ]
        self.carried_specs = [value.spec for value in signature.carried]
        self.carried = [
            torch.full(value.spec.sizes(*self.size), value.fill or 0, dtype=torch_dtype(value.spec))
            for value in signature.carried
        ]
        self.output_specs = signature.step_outputs
        self.outputs: list[torch.Tensor] = []
        self.outputs_are_borrowed = False

    def results(self) -> list[tuple[int, Tensors]]:
        """Make all calls; returns for each row its index in the batch and its outputs, those with time first."""
        resumed = 0 if self.resumed is None else len(self.resumed.rows)
        if self.signature.start_indices and resumed < len(self.lengths):
            for head in self.plan.heads:
                self.run_start(head)
        self.resume()
        for calls in split_chains(self.plan.calls):
            self.run_chunks(calls)
        finals = [final for head in self.plan.heads for final in self.run_head(head)]
        return [(row, (*steps, *final)) for row, steps, final in zip(self.index, self.step_results(), finals)]

    def run_start(self, head: ProgramCall) -> None:
        """Run the `start` program for the initial carried values of these rows."""
        results = self.run("start", head.bucket, [*self._timeless(head), self._whole_lengths(head)])
        specs = [self.signature.carried[position].spec for position in self.signature.start_indices]
        check_outputs(results, specs, head.bucket)
        for position, spec, result in zip(self.signature.start_indices, specs, results):
            self._put(self.carried[position], result, spec, head)

    def resume(self) -> None:
        """Copy the carried values of resumed sequences into the buffers."""
        if self.resumed is None or not self.resumed.rows:
            return
        indices = torch.tensor([self.index[row] for row in self.resumed.rows])
        for tensor, carried in zip(self.carried, self.resumed.carried):
            tensor.index_copy_(0, indices, carried)

    def carry(self) -> Tensors:
        """Return the current carried values, for all rows in the order of their requests."""
        indices = torch.tensor([self.index[row] for row in sorted(self.index)])
        return tuple([tensor.index_select(0, indices) for tensor in self.carried])

    def run_chunks(self, calls: Sequence[ProgramCall]) -> None:
        """Run chunks, each for the first rows of the one before it, and store the results.

        Everything that can be done before the first or after the last is done there. An engine that streams its weights
        leaves nothing else in the processor's caches: between two chunks every operation takes several times as long.
        """
        inputs = [
            [*map(self._part, self.inputs, self.signature.inputs, repeat(call)), self._lengths_within(call)]
            for call in calls
        ]
        all_results = self.chain([call.bucket for call in calls], inputs, self._state(calls[0]))
        specs, count = [*self.output_specs, *self.carried_specs], len(self.output_specs)
        for results, call in zip(all_results, calls):
            check_outputs(results, specs, call.bucket)
        (*_, results), (*_, last) = all_results, calls
        if last.bucket == self.size and len(last.rows) == len(self.lengths):  # the whole batch: nothing to join
            self.outputs, self.carried = list(results[:count]), list(results[count:])
            self.outputs_are_borrowed = True
            return
        if not self.outputs:
            self.outputs = [torch.empty(spec.sizes(*self.size), dtype=torch_dtype(spec)) for spec in self.output_specs]
        for results, call, after in zip(all_results, calls, [*calls[1:], None]):
            for tensor, result, spec in zip(self.outputs, results, self.output_specs):
                self._put(tensor, result, spec, call)
            ended = 0 if after is None else len(after.rows)
            for tensor, result, spec in zip(self.carried, results[count:], self.carried_specs):
                self._put(tensor, result, spec, call, ended)

    def run_head(self, head: ProgramCall) -> list[Tensors]:
        """Run the `head` program and return the outputs without time of these rows."""
        specs = self.signature.final_outputs
        if not specs:
            return [()] * len(head.rows)
        results = self.run("head", head.bucket, [*self._timeless(head), self._whole_lengths(head), *self._state(head)])
        check_outputs(results, specs, head.bucket)
        ones = [1] * len(head.rows)
        return list(zip(*(unpad(result, spec, ones) for result, spec in zip(results, specs))))

    def step_results(self) -> list[Tensors]:
        """Return the outputs that have time, by index in the buffers."""
        specs = self.output_specs
        if not specs:
            return [()] * len(self.lengths)
        cut = unpad if self.outputs_are_borrowed else unpadded_views
        return list(zip(*(cut(tensor, spec, self.lengths) for tensor, spec in zip(self.outputs, specs))))

    def _state(self, call: ProgramCall) -> list[torch.Tensor]:
        return list(map(self._part, self.carried, self.carried_specs, repeat(call)))

    def _timeless(self, head: ProgramCall) -> list[torch.Tensor]:
        both = zip(self.inputs, self.signature.inputs)
        return [self._part(tensor, spec, head) for tensor, spec in both if spec.time_dim is None]

    def _whole_lengths(self, head: ProgramCall) -> torch.Tensor:
        first = self.index[head.rows[0]]
        own = self.total_lengths[first : first + len(head.rows)]
        return lengths_tensor(own, Bucket(head.bucket.batch, max(own)))

    def _lengths_within(self, call: ProgramCall) -> torch.Tensor:
        """The number of timesteps of the call that each row has; a row that is computed and dropped counts one."""
        first, timesteps = self.index[call.rows[0]], call.bucket.length
        own = [min(length - call.start, timesteps) for length in self.lengths[first : first + len(call.rows)]]
        return lengths_tensor(own, call.bucket)

    def _part(self, tensor: torch.Tensor, spec: TensorSpec, call: ProgramCall) -> torch.Tensor:
        """Narrow a buffer to the call's rectangle."""
        if spec.batch_dim is not None:
            tensor = _narrow(tensor, spec.batch_dim, self.index[call.rows[0]], call.bucket.batch)
        if spec.time_dim is not None:
            tensor = _narrow(tensor, spec.time_dim, call.start, call.bucket.length)
        return tensor.contiguous()

    def _put(
        self, tensor: torch.Tensor, result: torch.Tensor, spec: TensorSpec, call: ProgramCall, first: int = 0
    ) -> None:
        """Write a result of a call into a buffer, for the call's own rows from the `first` of them on."""
        count = len(call.rows) - first
        if count == 0:
            return
        if spec.batch_dim is not None:
            tensor = _narrow(tensor, spec.batch_dim, self.index[call.rows[0]] + first, count)
            result = _narrow(result, spec.batch_dim, first, count)
        if spec.time_dim is not None:
            tensor = _narrow(tensor, spec.time_dim, call.start, call.bucket.length)
        tensor.copy_(result)


def split_chains(calls: Sequence[ProgramCall]) -> list[list[ProgramCall]]:
    """Split the calls into chains, in which each call continues the first rows of the one before it.

    >>> first, second = ProgramCall(Bucket(2, 3), (1, 0)), ProgramCall(Bucket(1, 4), (1,), start=3)
    >>> [len(chain) for chain in split_chains([first, second, ProgramCall(Bucket(1, 2), (2,))])]
    [2, 1]
    """
    chains: list[list[ProgramCall]] = []
    for call in calls:
        before = chains[-1][-1] if chains else None
        continues = (
            before is not None
            and call.start == before.start + before.bucket.length
            and call.rows == before.rows[: len(call.rows)]
            and call.bucket.batch <= before.bucket.batch
        )
        if continues:
            chains[-1].append(call)
        else:
            chains.append([call])
    return chains


def _narrow(tensor: torch.Tensor, dim: int, start: int, size: int) -> torch.Tensor:
    """Narrow one dimension; the tensor itself if that is all of it, which takes no time."""
    return tensor if size == tensor.shape[dim] else tensor.narrow(dim, start, size)


def _resumed_of(resumed: ResumedState, group: Plan) -> ResumedState:
    """Return the state from which the rows of a group resume."""
    rows = set(group.rows)
    places = [place for place, row in enumerate(resumed.rows) if row in rows]
    return ResumedState(
        tuple([resumed.rows[place] for place in places]),
        tuple([resumed.offsets[place] for place in places]),
        tuple([value[places] for value in resumed.carried]),
    )


def _carry_in_order(carries: Sequence[Tensors], groups: Sequence[Plan]) -> Tensors:
    """Join the carried values of groups, for all requests in their order."""
    if len(carries) <= 1:
        return carries[0] if carries else ()
    rows = [row for group in groups for row in sorted(group.rows)]
    indices = torch.tensor(sorted(range(len(rows)), key=rows.__getitem__))
    return tuple([torch.cat(parts).index_select(0, indices) for parts in zip(*carries)])


def _check_plan(plan: Plan, lengths: Sequence[int]) -> None:
    """Compare a plan with the lengths of the requests: a gap would return uninitialised memory.

    Raises `InvariantError`: rows are left out, not contiguous, do not continue where they stopped, or stop before their
    end.
    """
    order = plan.rows
    if sorted(order) != list(range(len(lengths))):
        raise InvariantError(f"the plan for {len(lengths)} requests contains {sorted(order)}")
    index = {row: place for place, row in enumerate(order)}
    own = [lengths[row] for row in order]
    reached = [0] * len(order)
    for call in plan.calls:
        first = index[call.rows[0]]
        last = first + len(call.rows)
        follows = order[first:last] == call.rows and len(call.rows) <= call.bucket.batch
        if not follows or set(reached[first:last]) != {call.start} or min(own[first:last]) <= call.start:
            raise InvariantError(f"{call} does not continue the calls before it")
        reached[first:last] = [call.start + call.bucket.length] * len(call.rows)
    if any(map(lt, reached, own)):
        raise InvariantError(f"the plan for sequences of {own} timesteps runs {reached}")
