"""A model with exact answers and no engine: it answers NaN wherever a caller must not read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from torchserve_neuron_lstm.bucketing.cost import CostModel
from torchserve_neuron_lstm.bucketing.execute import Pad, Tensors, execute
from torchserve_neuron_lstm.bucketing.execute_chunks import ChunkSignature, ResumedState, execute_chunks, resume_chunks
from torchserve_neuron_lstm.bucketing.padding import pad
from torchserve_neuron_lstm.bucketing.plan import Plan
from torchserve_neuron_lstm.bucketing.planner import Planner, make_planner
from torchserve_neuron_lstm.bucketing.shapes import Bucket, ProgramRole, TensorSpec
from torchserve_neuron_lstm.config.manifest import Manifest


@dataclass(frozen=True)
class BoundedSums:
    """A model of running means: no input makes an output large or NaN.

    An output with time is the mean of all inputs up to each timestep; one without is its last value.
    """

    manifest: Manifest

    def plan(self, lengths: Sequence[int]) -> Plan:
        """Plan the calls for sequences of these timesteps."""
        return self._planner.plan(lengths)

    @cached_property
    def _planner(self) -> Planner:
        facts = self.manifest
        cost, padded = CostModel.proportional(facts.grid), facts.padding == "masked"
        return make_planner(facts.kind, facts.grid, cost, padded=padded, longest=facts.longest)

    def run_plan(
        self,
        plan: Plan,
        sequences: Sequence[Sequence[torch.Tensor]],
        lengths: Sequence[int],
        pad: Pad = pad,
        resumed: ResumedState | None = None,
    ) -> tuple[list[Tensors], Tensors]:
        """Run a plan, as `ServedModel.run_plan`."""
        facts = self.manifest
        signature = ChunkSignature(facts.inputs, facts.outputs, facts.carried)
        if resumed is not None:
            return resume_chunks(plan, sequences, lengths, signature, self._run_chunk, resumed)
        if facts.kind == "chunk":
            return execute_chunks(plan, sequences, lengths, signature, self._run_chunk, pad), ()
        run = self._run_whole
        return execute(plan, sequences, lengths, facts.inputs, facts.outputs, facts.takes_lengths, run, pad), ()

    def _run_whole(self, bucket: Bucket, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        *inputs, lengths = tensors
        means = _means(inputs, self.manifest.inputs, bucket).cumsum(1) / torch.arange(1, bucket.length + 1)
        last = means.gather(1, (lengths - 1)[:, None])
        means[torch.arange(bucket.length) >= lengths[:, None]] = torch.nan
        return [_output(means, last, spec) for spec in self.manifest.outputs]

    def _run_chunk(self, part: ProgramRole, bucket: Bucket, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if part == "head":
            return [tensors[1][:, 0].clone()]
        *inputs, lengths, before = tensors
        sums = _means(inputs, self.manifest.inputs, bucket).cumsum(1) + before
        carried = sums.gather(1, lengths[:, None] - 1)
        return [torch.tanh(sums), carried]


def _means(inputs: Sequence[torch.Tensor], specs: Sequence[TensorSpec], bucket: Bucket) -> torch.Tensor:
    """Return float32[B, T]: the mean of all inputs' bounded values at each timestep."""
    whole = torch.zeros(bucket.batch, bucket.length)
    for tensor, spec in zip(inputs, specs, strict=True):
        bounded = torch.tanh(tensor.float() / 100)
        if spec.time_dim is None:
            whole += bounded.reshape(bucket.batch, -1).mean(1, keepdim=True)
            continue
        batch_first = bounded.movedim((spec.batch_dim or 0, spec.time_dim), (0, 1))
        whole += batch_first.reshape(bucket.batch, bucket.length, -1).mean(2)
    return whole


def _output(means: torch.Tensor, last: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    if spec.time_dim is not None:
        return means.clone()
    return last * torch.arange(1, spec.item_sizes(1)[0] + 1)
