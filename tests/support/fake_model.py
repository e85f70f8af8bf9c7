"""A fake compiled model with known answers that detects any use of padding."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchserve_neuron_lstm.bucketing.cost import CostModel
from torchserve_neuron_lstm.bucketing.execute import Pad, Tensors, execute
from torchserve_neuron_lstm.bucketing.execute_chunks import ResumedState
from torchserve_neuron_lstm.bucketing.padding import pad
from torchserve_neuron_lstm.bucketing.plan import Plan
from torchserve_neuron_lstm.bucketing.planner import make_planner
from torchserve_neuron_lstm.bucketing.shapes import Bucket, BucketGrid, TensorSpec
from torchserve_neuron_lstm.config.manifest import Manifest, Variant

GRID = BucketGrid(batches=(1, 4), lengths=(4, 8))
IDS = TensorSpec("ids", "int64", ("batch", "time"), vocabulary=100)
FRAMES = TensorSpec("frames", "float32", ("batch", "time", 2))
SUMS = TensorSpec("sums", "float32", ("batch", "time"))
TOTAL = TensorSpec("state.0", "float32", ("batch", 3))


def make_manifest(
    inputs: Sequence[TensorSpec] = (IDS,), outputs: Sequence[TensorSpec] = (SUMS,), **facts: object
) -> Manifest:
    """A manifest over `GRID` with some values changed."""
    given: dict[str, Any] = {
        "backend": "fake",
        "requires": (),
        "host": {},
        "inputs": tuple(inputs),
        "takes_lengths": True,
        "outputs": tuple(outputs),
        "overflow": "reject",
        "kind": "sequence",
        "kind_reason": "it is not cut into pieces",
        "carried": (),
        "grid": GRID,
        "shapes": "grid",
        "longest": GRID.lengths[-1],
        "variants": tuple(Variant("sequence", bucket, "programs/fake") for bucket in GRID.buckets),
        "checks": (),
        "costs": (),
    }
    return Manifest(**(given | facts))


@dataclass
class FakeModel:
    """A model that answers for each row `sums`, the running sum over all inputs' features.

    Any other output is its last value.

    Values beyond a row's length are arbitrary, in outputs as in inputs. A call that contains `poison` fails.
    """

    manifest: Manifest = field(default_factory=make_manifest)
    poison: float = 66.0
    runs: list[Bucket] = field(default_factory=list)

    def plan(self, lengths: Sequence[int]) -> Plan:
        grid = self.manifest.grid
        return make_planner("sequence", grid, CostModel.proportional(grid)).plan(lengths)

    def run_plan(
        self, plan: Plan, sequences: Any, lengths: Sequence[int], pad: Pad = pad, resumed: ResumedState | None = None
    ) -> tuple[list[Tensors], Tensors]:
        facts = self.manifest
        return execute(plan, sequences, lengths, facts.inputs, facts.outputs, facts.takes_lengths, self.run, pad), ()

    def run(self, bucket: Bucket, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        self.runs.append(bucket)
        *inputs, lengths = tensors
        if any(bool((tensor == self.poison).any()) for tensor in inputs):
            raise RuntimeError("a kernel failed\r\nover two lines")
        running = running_sums(inputs)
        beyond = torch.arange(bucket.length) >= lengths[:, None]
        last = running.gather(1, (lengths - 1)[:, None])
        running[beyond] = torch.nan
        return [running if spec.time_dim is not None else last.expand(-1, 3) for spec in self.manifest.outputs]


def running_sums(inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """float32[B, T] of inputs [B, T] and [B, T, F]."""
    sums = [tensor.float().reshape(*tensor.shape[:2], -1).sum(dim=2).cumsum(dim=1) for tensor in inputs]
    return torch.stack(sums).sum(dim=0)
