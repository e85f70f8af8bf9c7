"""A fake chunked model with known answers, without an engine."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from fake_model import make_manifest

from torchserve_neuron_lstm.bucketing.cost import CostModel
from torchserve_neuron_lstm.bucketing.execute import Pad, Tensors
from torchserve_neuron_lstm.bucketing.execute_chunks import ChunkSignature, ResumedState, execute_chunks
from torchserve_neuron_lstm.bucketing.padding import pad
from torchserve_neuron_lstm.bucketing.plan import Plan
from torchserve_neuron_lstm.bucketing.planner import make_planner
from torchserve_neuron_lstm.bucketing.shapes import Bucket, CarriedValue, ProgramRole, TensorSpec
from torchserve_neuron_lstm.config.manifest import Manifest, Variant
from torchserve_neuron_lstm.sessions.settings import SessionFields, SessionSettings

FIELDS = SessionFields(
    id="ts_request_sequence_id",
    start="ts_request_sequence_start",
    end="ts_request_sequence_end",
    step="ts_request_sequence_step",
    token="ts_request_sequence_token",
)
STATE = "ab" * 16
SETTINGS = SessionSettings("disk", STATE, None, None, None, 600.0, 100, 10**6, FIELDS)
SUMS = TensorSpec("sums", "float32", ("batch", "time"))
TOTAL = TensorSpec("total", "float32", ("batch",))
CARRIED = (CarriedValue(TensorSpec("sum", "float32", ("batch", 1)), 0.0),)


def streaming_manifest(**facts: object) -> Manifest:
    """The manifest of a model that answers the running sum of its ids, and the sum so far."""
    given: dict[str, Any] = {
        "outputs": (SUMS, TOTAL),
        "kind": "chunk",
        "carried": CARRIED,
        "longest": 64,
        "streaming": SETTINGS,
        "variants": (Variant("chunk", None, "programs/fake/chunk"), Variant("head", None, "programs/fake/head")),
    }
    return make_manifest(**(given | facts))


@dataclass
class FakeStreamingModel:
    """A model that computes sums. A call that contains `poison` fails."""

    manifest: Manifest = field(default_factory=streaming_manifest)
    poison: int = 66
    batches: list[int] = field(default_factory=list)
    """The number of sequences of each batch."""

    def plan(self, lengths: Sequence[int]) -> Plan:
        grid = self.manifest.grid
        return make_planner("chunk", grid, CostModel.proportional(grid), longest=self.manifest.longest).plan(lengths)

    def run_plan(
        self, plan: Plan, sequences: Any, lengths: Sequence[int], pad: Pad = pad, resumed: ResumedState | None = None
    ) -> tuple[list[Tensors], Tensors]:
        if resumed is None:
            zeros = all(not tensor.any() for sequence in sequences for tensor in sequence)
            assert zeros, "a streaming model runs requests of sessions only, and zeros to warm up"
            one = torch.ones(1, dtype=torch.int64)
            return [tuple(self.run("chunk", plan.calls[0].bucket, [0 * one[None], one, torch.zeros(1, 1)]))], ()
        self.batches.append(len(sequences))
        signature = ChunkSignature(self.manifest.inputs, self.manifest.outputs, self.manifest.carried)
        return execute_chunks(plan, sequences, lengths, signature, self.run, pad, resumed=resumed)

    def run(self, part: ProgramRole, bucket: Bucket, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if part == "head":
            return [tensors[1][:, 0].clone()]
        ids, lengths, before = tensors
        if bool((ids == self.poison).any()):
            raise RuntimeError("a kernel failed")
        sums = ids.float().cumsum(1) + before
        return [sums, sums.gather(1, lengths[:, None] - 1)]
