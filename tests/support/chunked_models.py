"""Random chunked plans, sensible or not, and models that are run by them."""

import random
from collections.abc import Mapping, Sequence

import torch
from ragged import GARBAGE, pad_with
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from torchserve_neuron_lstm.backends.interface import LoadedProgram
from torchserve_neuron_lstm.bucketing.execute_chunks import ChunkSignature, execute_chunks
from torchserve_neuron_lstm.bucketing.plan import Plan, ProgramCall
from torchserve_neuron_lstm.bucketing.shapes import Bucket, ProgramRole
from torchserve_neuron_lstm.lowering.program import LoweredModel

Rows = tuple[int, ...]


def any_chunked_plan(lengths: Sequence[int], choose: random.Random, roomy: bool = True) -> Plan:
    """A plan that advances the rows in groups, which may split at any time, in turns.

    With `roomy`, buckets may be larger than their rows and timesteps, as fixed shapes are.
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    calls: list[ProgramCall] = []
    pending = [(tuple(order), 0)]
    while pending:
        rows, start = pending.pop(choose.randrange(len(pending)))
        alive = tuple(row for row in rows if lengths[row] > start)
        if len(alive) > 1 and choose.random() < 0.3:
            place = choose.randint(1, len(alive) - 1)
            pending += [(alive[:place], start), (alive[place:], start)]
        elif alive:
            left = lengths[alive[0]] - start
            steps = choose.randint(1, left)
            bucket = Bucket(len(alive) + roomy * choose.choice((0, 0, 1, 3)), steps)
            calls.append(ProgramCall(bucket, alive, start))
            pending.append((alive, start + steps))
            if roomy and choose.random() < 0.2:  # beyond every end
                calls[-1] = ProgramCall(Bucket(bucket.batch, left + choose.randint(0, 4)), alive, start)
                pending.pop()
    return Plan(tuple(calls), tuple(_heads(tuple(order), choose, roomy)))


def _heads(order: Rows, choose: random.Random, roomy: bool) -> list[ProgramCall]:
    heads = []
    while order:
        count = choose.randint(1, len(order))
        heads.append(ProgramCall(Bucket(count + roomy * choose.choice((0, 0, 2)), 1), order[:count]))
        order = order[count:]
    return heads


def assert_chunks_equal_whole_sequences(
    model: nn.Module,
    program: LoweredModel,
    requests: Sequence[list[Tensor]],
    lengths: Sequence[int],
    loaded: Mapping[ProgramRole, LoadedProgram] | None = None,
) -> None:
    """Cut requests at random, and compare with eager mode.

    Rows end within a chunk, and there is garbage in the padding. Without `loaded` programs of an engine, the exported
    ones run.
    """
    assert program.chunked is not None, program.chunking_reason
    parts = loaded or exported_parts(program)
    with torch.no_grad():
        expected = [tree_leaves(model(*(tensor[None] for tensor in request))) for request in requests]
    for seed in range(8):
        plan = any_chunked_plan(lengths, random.Random(seed))
        assert_plan_answers(program, parts, plan, requests, lengths, expected, GARBAGE[seed % len(GARBAGE)])


def assert_plan_answers(
    program: LoweredModel,
    parts: Mapping[ProgramRole, LoadedProgram],
    plan: Plan,
    requests: Sequence[list[Tensor]],
    lengths: Sequence[int],
    expected: Sequence[Sequence[Tensor]],
    garbage: float,
) -> None:
    """Execute a plan, and compare every output with that of each request alone, which is a batch of one."""
    assert program.chunked is not None, program.chunking_reason
    signature = ChunkSignature(program.inputs, program.outputs, program.chunked.carried)

    def run(part: ProgramRole, bucket: Bucket, tensors: list[Tensor]) -> list[Tensor]:
        return [result.contiguous() for result in parts[part](tensors)]

    with torch.no_grad():
        answers, _ = execute_chunks(plan, requests, lengths, signature, run, pad_with(garbage))
    for answer, alone in zip(answers, expected, strict=True):
        for ours, theirs, spec in zip(answer, alone, program.outputs, strict=True):
            reference = theirs.select(spec.shape.index("batch"), 0)
            assert (ours.shape, ours.dtype) == (reference.shape, reference.dtype)
            assert torch.allclose(ours, reference, 1e-5, 1e-5), (spec.name, plan, garbage)


def exported_parts(program: LoweredModel) -> dict[ProgramRole, LoadedProgram]:
    """The programs for chunks of time, as they were exported."""
    return {part: _loaded(exported) for part, exported in program.parts.items()}


def _loaded(program: torch.export.ExportedProgram) -> LoadedProgram:
    module = program.module()
    return lambda tensors: list(module(*tensors))
