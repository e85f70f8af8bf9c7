"""A model that sums its inputs: its programs, for sequences and in chunks, and its reference."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from fake_model import make_manifest

from torchserve_neuron_lstm.archiver_ext.evaluation.reference import ReferenceOutputs, ReferenceRequest
from torchserve_neuron_lstm.bucketing import shapes
from torchserve_neuron_lstm.bucketing.cost import CostModel
from torchserve_neuron_lstm.bucketing.execute import Pad, execute
from torchserve_neuron_lstm.bucketing.execute_chunks import ChunkSignature, ResumedState, execute_chunks
from torchserve_neuron_lstm.bucketing.padding import pad
from torchserve_neuron_lstm.bucketing.plan import Plan
from torchserve_neuron_lstm.bucketing.planner import make_planner
from torchserve_neuron_lstm.bucketing.shapes import Bucket, BucketGrid, DynamicShape, ProgramRole, TensorSpec
from torchserve_neuron_lstm.config.manifest import Manifest
from torchserve_neuron_lstm.lowering.program import ChunkPrograms, LoweredModel

GRID = BucketGrid((1, 4), (3, 8))
LONGEST = 20
TOLERANCE = (1e-5, 1e-5)
Tensors = Sequence[torch.Tensor]
Right = Callable[[Tensors], list[torch.Tensor]]
ChunkRun = Callable[[ProgramRole, Tensors], list[torch.Tensor]]
CARRIED = (shapes.CarriedValue(TensorSpec("so_far", "float32", ("batch", 2)), 0.0),)
SPLIT = ChunkPrograms(cast(torch.export.ExportedProgram, None), None, None, CARRIED)


def program(**changes: Any) -> LoweredModel:
    """A model with sums up to every timestep of x[T, B, 2] and the whole sum: two outputs of two layouts."""
    facts: dict[str, Any] = {
        "inputs": (
            TensorSpec("x", "float32", ("time", "batch", 2)),
            TensorSpec("ids", "int64", ("batch",), vocabulary=5),
        ),
        "takes_lengths": True,
        "outputs": (TensorSpec("sums", "float32", ("batch", "time", 2)), TensorSpec("whole", "float32", ("batch",))),
        "constants": {},
        "chunked": None,
        "chunking_reason": "",
        "any_shape": True,
    }
    return LoweredModel(exported=cast(torch.export.ExportedProgram, None), **{**facts, **changes})


@dataclass
class Whole:
    """A verified model over whole sequences: a function of padded tensors, planned over the grid."""

    run: Right
    made: LoweredModel = field(default_factory=program)
    manifest: Manifest = field(default_factory=make_manifest)

    def plan(self, lengths: Sequence[int]) -> Plan:
        return make_planner("sequence", GRID, CostModel.proportional(GRID)).plan(lengths)

    def run_plan(
        self, plan: Plan, requests: Any, lengths: Sequence[int], pad: Pad = pad, resumed: ResumedState | None = None
    ) -> tuple[list[ReferenceOutputs], tuple[torch.Tensor, ...]]:
        made, run = self.made, self.run
        layouts = (made.inputs, made.outputs, made.takes_lengths)
        return execute(plan, requests, lengths, *layouts, lambda _, tensors: run(tensors), pad), ()


@dataclass
class InChunks:
    """The same model in chunks, for any shape."""

    run: ChunkRun
    manifest: Manifest = field(default_factory=make_manifest)

    def plan(self, lengths: Sequence[int]) -> Plan:
        shape = DynamicShape(4, LONGEST)
        return make_planner("chunk", shape, CostModel.proportional(shape)).plan(lengths)

    def run_plan(
        self, plan: Plan, requests: Any, lengths: Sequence[int], pad: Pad = pad, resumed: ResumedState | None = None
    ) -> tuple[list[ReferenceOutputs], tuple[torch.Tensor, ...]]:
        made = program()
        signature = ChunkSignature(made.inputs, made.outputs, CARRIED)

        def run(part: ProgramRole, bucket: Bucket, tensors: Tensors) -> list[torch.Tensor]:
            return self.run(part, tensors)

        return execute_chunks(plan, requests, lengths, signature, run, pad, resumed=resumed)


def eager(request: ReferenceRequest) -> ReferenceOutputs:
    x, ids = request.inputs
    return x.cumsum(0), x.sum() + ids


def right(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    x, ids, lengths = tensors
    valid = torch.arange(x.shape[0])[:, None] < lengths
    x = torch.where(valid[..., None], x, 0.0)
    return [x.cumsum(0).transpose(0, 1), x.sum((0, 2)) + ids]


def silent(done: int, total: int, text: str) -> None:
    """Ignore the progress."""


def right_chunk(part: ProgramRole, tensors: Tensors) -> list[torch.Tensor]:
    if part == "head":
        ids, _, so_far = tensors
        return [so_far.sum(1) + ids]
    x, ids, lengths, so_far = tensors
    valid = torch.arange(x.shape[0])[:, None] < lengths
    sums = so_far + torch.where(valid[..., None], x, 0.0).cumsum(0)
    return [sums.transpose(0, 1).contiguous(), sums[-1].contiguous()]


def forgetful(part: ProgramRole, tensors: Tensors) -> list[torch.Tensor]:
    """Both programs in chunks, which reset the state with every chunk."""
    return right_chunk(part, tensors if part == "head" else [*tensors[:3], torch.zeros_like(tensors[3])])
