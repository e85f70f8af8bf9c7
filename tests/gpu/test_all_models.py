"""All test models on a real GPU, against the lowered program on the CPU.

Without a GPU, each test is skipped as not run.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("pydantic", reason="not run: the configurations of the test models need pydantic")

from model_batches import inputs_of, rehearsal
from model_cases import Case, cases, lowered

from torchserve_neuron_lstm.backends.cuda.engine import Cuda, load_on_device
from torchserve_neuron_lstm.backends.cuda.torch_device import TorchDevice, gpu_missing
from torchserve_neuron_lstm.backends.exported_tensors import weights_of
from torchserve_neuron_lstm.bucketing.shapes import Bucket

_MISSING = gpu_missing()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_MISSING is not None, reason=f"not run: {_MISSING}")]


@pytest.mark.parametrize("case", cases())
@torch.no_grad()
def test_equals_the_program_on_the_cpu_in_every_bucket(case: Case, tmp_path: Path) -> None:
    """The engine refuses no test model."""
    program = lowered(case).program
    exported = program.exported
    Cuda().compile(exported, None, tmp_path)
    rows = 4 if any("batch" in spec.shape for spec in program.inputs) else 1
    buckets = [Bucket(1, 9), Bucket(rows, 16)]
    inputs = {bucket: inputs_of(program.inputs, bucket, takes_lengths=program.takes_lengths) for bucket in buckets}
    rehearsals = [rehearsal(bucket, inputs[bucket]) for bucket in buckets]
    run = load_on_device(TorchDevice(0), {"sequence": tmp_path}, weights_of(exported), rehearsals)["sequence"]

    for bucket in buckets:
        for ours, theirs in zip(run(inputs[bucket]), exported.module()(*inputs[bucket]), strict=True):
            assert torch.allclose(ours, theirs, atol=1e-5, rtol=1e-5, equal_nan=True)
