"""Following a plan for a model cut into pieces of time: the state is handed on from run to run.

All requests of a batch stand in the same buffers, the longest first, so that a run is a rectangle of them: some rows by
some timesteps. A row that ends within a run keeps the state of its own last step, for the programs take lengths. What
lies in the rectangle beside the run's own rows (a fixed shape may be larger) is computed and dropped.

A batch may go on from where its sequences were left before, and be left to go on from in turn: so a stream is served.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import lt

import torch

from .errors import InvariantError
from .execute import Pad, Tensors, check_outputs
from .padding import lengths_tensor, pad, torch_dtype, unpad, unpadded_views
from .plan import Plan, ProgramCall
from .shapes import Bucket, CarriedValue, ProgramRole, TensorSpec

RunProgram = Callable[[ProgramRole, Bucket, list[torch.Tensor]], Sequence[torch.Tensor]]
"""Runs one of the programs for a bucket. Each takes tensors in this order: inputs (`start` and `head` only those
without time), lengths[B] (`chunk`: within the piece), and but for `start` the carried values. `chunk` gives the outputs
that have time, then the carried values; `head` the other outputs; `start` the carried values that have no `fill`."""

RunChain = Callable[
    [Sequence[Bucket], Sequence[list[torch.Tensor]], list[torch.Tensor]], Sequence[Sequence[torch.Tensor]]
]
"""Runs several pieces one after the other: the buckets, what each takes but for the carried values, and those of the
first. Each of the others goes on with the first rows of what the one before it left. Gives what each of them gives."""


def sequential_chain(run: RunProgram) -> RunChain:
    """Pieces in a row on a program that knows nothing of it."""

    def chain(
        buckets: Sequence[Bucket], calls: Sequence[list[torch.Tensor]], carried: list[torch.Tensor]
    ) -> Sequence[Sequence[torch.Tensor]]:
        given = []
        for bucket, call in zip(buckets, calls, strict=True):
            results = run("chunk", bucket, [*call, *(value[: bucket.batch] for value in carried)])
            given.append(results)
            carried = list(results[len(results) - len(carried) :])
        return given

    return chain


@dataclass(frozen=True)
class ChunkSignature:
    """The layouts of a model cut into pieces of time."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    carried: tuple[CarriedValue, ...]

    @property
    def step_outputs(self) -> tuple[TensorSpec, ...]:
        """Those that `chunk` gives."""
        return tuple(spec for spec in self.outputs if spec.time_dim is not None)

    @property
    def final_outputs(self) -> tuple[TensorSpec, ...]:
        """Those that `head` gives."""
        return tuple(spec for spec in self.outputs if spec.time_dim is None)

    @property
    def start_indices(self) -> tuple[int, ...]:
        """Which carried values `start` gives."""
        return tuple(place for place, value in enumerate(self.carried) if value.fill is None)


@dataclass(frozen=True)
class ResumedState:
    """What some requests of a batch go on from; the others begin."""

    rows: tuple[int, ...]
    """Which requests, by their places in the batch."""
    offsets: tuple[int, ...]
    """That each of them has behind it."""
    carried: Tensors
    """Their carried values, in the order of `Pieces.carried`; the rows of each stand as `rows` do."""


def execute_chunks(
    plan: Plan,
    requests: Sequence[Sequence[torch.Tensor]],
    lengths: Sequence[int],
    pieces: ChunkSignature,
    run: RunProgram,
    pad: Pad = pad,
    chain: RunChain | None = None,
) -> list[Tensors]:
    """The answers of all requests, in their order: each has one tensor an output, of the output's `item_shape`.

    A request has one tensor an input, of the input's `item_shape`. The answers of a batch may share memory. `chain`
    runs pieces in a row faster than `run` would; left out, that is used.

    Raises:
        ValueError: a request's tensor has not the shape or dtype of its input.
        BrokenInvariant: the plan leaves a timestep out, or a program's answers are not as declared.
    """
    if not requests:
        return []
    batch = ChunkedExecution(plan, requests, lengths, pieces, run, pad, chain=chain)
    return _followed(plan, batch)


def resume_chunks(
    plan: Plan,
    requests: Sequence[Sequence[torch.Tensor]],
    lengths: Sequence[int],
    pieces: ChunkSignature,
    run: RunProgram,
    past: ResumedState,
    chain: RunChain | None = None,
) -> tuple[list[Tensors], Tensors]:
    """The same for the next piece of each sequence: `lengths` are the piece's own.

    What has no time is answered as if the sequence ended with this piece. Returns besides the answers the carried
    values after it, in the order of `pieces.carried`; the rows of each stand as the requests do.

    Raises:
        ValueError, BrokenInvariant: as `execute_chunks`.
    """
    batch = ChunkedExecution(plan, requests, lengths, pieces, run, past=past, chain=chain)
    return _followed(plan, batch), batch.carry()


def _followed(plan: Plan, batch: ChunkedExecution) -> list[Tensors]:
    pieces = batch.pieces
    if pieces.start_indices and batch.has_new_sequences:
        for head in plan.heads:
            batch.run_start(head)
    batch.resume()
    for runs in split_chains(plan.runs):
        batch.run_chunks(runs)
    finals = [answer for head in plan.heads for answer in batch.run_head(head)]
    steps = batch.step_results()
    # The answers of a row stand as steps and finals do: `turn` has the place of each output among them.
    timed = iter(range(len(batch.output_specs)))
    whole = iter(range(len(batch.output_specs), len(pieces.outputs)))
    turn = [next(whole if spec.time_dim is None else timed) for spec in pieces.outputs]
    answers: list[Tensors] = [()] * len(batch.place)
    for row, place in batch.place.items():
        own = (*steps[place], *finals[place])
        answers[row] = tuple([own[index] for index in turn])
    return answers


class ChunkedExecution:
    """One batch on its way through the programs: all that its runs read and write."""

    def __init__(
        self,
        plan: Plan,
        requests: Sequence[Sequence[torch.Tensor]],
        lengths: Sequence[int],
        pieces: ChunkSignature,
        run: RunProgram,
        pad: Pad = pad,
        past: ResumedState | None = None,
        chain: RunChain | None = None,
    ) -> None:
        order = [row for head in plan.heads for row in head.rows]
        if sorted(order) != list(range(len(requests))):
            raise InvariantError(f"{len(requests)} requests were to be answered, the plan answers {sorted(order)}")
        self.pieces, self.run, self.past = pieces, run, past
        self.chain = chain or sequential_chain(run)
        self.place = {row: place for place, row in enumerate(order)}
        self.lengths = [lengths[row] for row in order]
        self.total_lengths = self._whole(past) if past else self.lengths
        _check_plan(plan, order, self.place, self.lengths)
        rows = max(self.place[step.rows[0]] + step.bucket.batch for step in (*plan.runs, *plan.heads))
        timesteps = max(step.start + step.bucket.length for step in plan.runs)
        self.size = Bucket(rows, timesteps)
        self.inputs = [
            pad([requests[row][position] for row in order], spec, self.size)
            for position, spec in enumerate(pieces.inputs)
        ]
        self.carried_specs = [value.spec for value in pieces.carried]
        self.carried = [
            torch.full(value.spec.sizes(*self.size), value.fill or 0, dtype=torch_dtype(value.spec))
            for value in pieces.carried
        ]
        self.output_specs = pieces.step_outputs
        self.outputs: list[torch.Tensor] = []
        self.outputs_are_borrowed = False

    @property
    def has_new_sequences(self) -> bool:
        """Whether a sequence of the batch has nothing behind it."""
        return self.past is None or len(self.past.rows) < len(self.place)

    def run_start(self, head: ProgramCall) -> None:
        """Let the model compute what these rows begin with."""
        began = self.run("start", head.bucket, [*self._free(head), self._whole_lengths(head)])
        specs = [self.pieces.carried[position].spec for position in self.pieces.start_indices]
        check_outputs(began, specs, head.bucket)
        for position, spec, result in zip(self.pieces.start_indices, specs, began, strict=True):
            self._put(self.carried[position], result, spec, head)

    def resume(self) -> None:
        """Put in place what sequences go on from."""
        if self.past is None or not self.past.rows:
            return
        places = torch.tensor([self.place[row] for row in self.past.rows])
        for tensor, carried in zip(self.carried, self.past.carried, strict=True):
            tensor.index_copy_(0, places, carried)

    def carry(self) -> Tensors:
        """The carried values as they are now, for all requests in their order."""
        places = torch.tensor([self.place[row] for row in range(len(self.place))])
        return tuple([tensor.index_select(0, places) for tensor in self.carried])

    def run_chunks(self, steps: Sequence[ProgramCall]) -> None:
        """Run pieces, each for the first rows of the one before it, and hand on what they leave.

        All that can be done before the first or after the last is done there. An engine that streams its weights leaves
        nothing else in the processor's caches: between two pieces every operation takes several times as long.
        """
        inputs = [
            [*map(self._part, self.inputs, self.pieces.inputs, repeat(step)), self._lengths_within(step)]
            for step in steps
        ]
        given = self.chain([step.bucket for step in steps], inputs, self._state(steps[0]))
        specs, count = [*self.output_specs, *self.carried_specs], len(self.output_specs)
        for results, step in zip(given, steps, strict=True):
            check_outputs(results, specs, step.bucket)
        (*_, results), (*_, last) = given, steps
        if last.bucket == self.size and len(last.rows) == len(self.lengths):  # all there is: nothing to put together
            self.outputs, self.carried = list(results[:count]), list(results[count:])
            self.outputs_are_borrowed = True
            return
        if not self.outputs:
            self.outputs = [torch.empty(spec.sizes(*self.size), dtype=torch_dtype(spec)) for spec in self.output_specs]
        for results, step, after in zip(given, steps, [*steps[1:], None], strict=True):
            for tensor, result, spec in zip(self.outputs, results, self.output_specs, strict=False):
                self._put(tensor, result, spec, step)
            ended = 0 if after is None else len(after.rows)
            for tensor, result, spec in zip(self.carried, results[count:], self.carried_specs, strict=True):
                self._put(tensor, result, spec, step, ended)

    def run_head(self, head: ProgramCall) -> list[Tensors]:
        """The outputs without time of these rows."""
        specs = self.pieces.final_outputs
        if not specs:
            return [()] * len(head.rows)
        results = self.run("head", head.bucket, [*self._free(head), self._whole_lengths(head), *self._state(head)])
        check_outputs(results, specs, head.bucket)
        ones = [1] * len(head.rows)
        return list(zip(*(unpad(result, spec, ones) for result, spec in zip(results, specs, strict=True)), strict=True))

    def step_results(self) -> list[Tensors]:
        """The outputs of every timestep, by place."""
        specs = self.output_specs
        if not specs:
            return [()] * len(self.lengths)
        cut = unpad if self.outputs_are_borrowed else unpadded_views
        parts = [cut(tensor, spec, self.lengths) for tensor, spec in zip(self.outputs, specs, strict=True)]
        return list(zip(*parts, strict=True))

    def _state(self, step: ProgramCall) -> list[torch.Tensor]:
        return list(map(self._part, self.carried, self.carried_specs, repeat(step)))

    def _free(self, head: ProgramCall) -> list[torch.Tensor]:
        both = zip(self.inputs, self.pieces.inputs, strict=True)
        return [self._part(tensor, spec, head) for tensor, spec in both if spec.time_dim is None]

    def _whole(self, past: ResumedState) -> list[int]:
        """The timesteps of each row, those behind it included."""
        whole = list(self.lengths)
        for row, behind in zip(past.rows, past.offsets, strict=True):
            whole[self.place[row]] += behind
        return whole

    def _whole_lengths(self, head: ProgramCall) -> torch.Tensor:
        first = self.place[head.rows[0]]
        own = self.total_lengths[first : first + len(head.rows)]
        return lengths_tensor(own, Bucket(head.bucket.batch, max(own)))

    def _lengths_within(self, step: ProgramCall) -> torch.Tensor:
        """How many timesteps of the run are each row's own; a row that is computed and dropped counts one."""
        first, timesteps = self.place[step.rows[0]], step.bucket.length
        own = [min(length - step.start, timesteps) for length in self.lengths[first : first + len(step.rows)]]
        return lengths_tensor(own, step.bucket)

    def _part(self, tensor: torch.Tensor, spec: TensorSpec, step: ProgramCall) -> torch.Tensor:
        """The run's rectangle of a buffer."""
        if spec.batch_dim is not None:
            tensor = _narrow(tensor, spec.batch_dim, self.place[step.rows[0]], step.bucket.batch)
        if spec.time_dim is not None:
            tensor = _narrow(tensor, spec.time_dim, step.start, step.bucket.length)
        return tensor.contiguous()

    def _put(
        self, tensor: torch.Tensor, result: torch.Tensor, spec: TensorSpec, step: ProgramCall, first: int = 0
    ) -> None:
        """Write what a run gives for its own rows, from the `first` of them on, into a buffer."""
        count = len(step.rows) - first
        if count == 0:
            return
        if spec.batch_dim is not None:
            tensor = _narrow(tensor, spec.batch_dim, self.place[step.rows[0]] + first, count)
            result = _narrow(result, spec.batch_dim, first, count)
        if spec.time_dim is not None:
            tensor = _narrow(tensor, spec.time_dim, step.start, step.bucket.length)
        tensor.copy_(result)


def split_chains(runs: Sequence[ProgramCall]) -> list[list[ProgramCall]]:
    """The runs in stretches in which each goes on with the first rows of the one before it.

    >>> first, second = ProgramCall(Bucket(2, 3), (1, 0)), ProgramCall(Bucket(1, 4), (1,), start=3)
    >>> stair = [first, second, ProgramCall(Bucket(1, 2), (2,))]
    >>> [len(stretch) for stretch in split_chains(stair)]
    [2, 1]
    """
    stretches: list[list[ProgramCall]] = []
    for run in runs:
        before = stretches[-1][-1] if stretches else None
        goes_on = (
            before is not None
            and run.start == before.start + before.bucket.length
            and run.rows == before.rows[: len(run.rows)]
            and run.bucket.batch <= before.bucket.batch
        )
        if goes_on:
            stretches[-1].append(run)
        else:
            stretches.append([run])
    return stretches


def _narrow(tensor: torch.Tensor, dim: int, start: int, size: int) -> torch.Tensor:
    """A view of a part of one dimension; the tensor itself where that is all of it, which takes no time."""
    return tensor if size == tensor.shape[dim] else tensor.narrow(dim, start, size)


def _check_plan(plan: Plan, order: Sequence[int], place: Mapping[int, int], lengths: Sequence[int]) -> None:
    """Hold a plan against the requests: a gap would be answered with whatever stood in memory.

    `order` has the requests as they stand in the buffers, `lengths` theirs, and `place` where each stands.

    Raises:
        BrokenInvariant: rows do not stand together, or do not go on where they were left, or stop before their end.
    """
    reached = [0] * len(order)
    for step in plan.runs:
        first = place[step.rows[0]]
        last = first + len(step.rows)
        follows = tuple(order[first:last]) == step.rows and len(step.rows) <= step.bucket.batch
        if not follows or set(reached[first:last]) != {step.start} or min(lengths[first:last]) <= step.start:
            raise InvariantError(f"{step} does not follow on what was run before it")
        reached[first:last] = [step.start + step.bucket.length] * len(step.rows)
    if any(map(lt, reached, lengths)):
        raise InvariantError(f"sequences of {list(lengths)} timesteps were to be run, the plan runs {reached}")
