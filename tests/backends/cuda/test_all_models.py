"""Test models on a double of a GPU: exact against the model in eager mode, each row alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from graph_device import GraphDevice
from model_batches import inputs_of, rehearsal
from model_cases import Case, cases, lowered

from torchserve_neuron_lstm.backends.cuda.engine import Cuda, load_on_device
from torchserve_neuron_lstm.backends.exported_tensors import weights_of
from torchserve_neuron_lstm.bucketing.shapes import Bucket

MODELS = (
    "Tagger",
    "ProjectedFourLayers",
    "GruWithState",
    "LstmWithState",
    "ResidualStack",
    "AttentionPooling",
    "SelfAttention",
    "MaskedMeanPooling",
    "TwoInputs",
    "LastStepClassifier",
    "VanillaRnn",
    "MeanOverTime",
)


@pytest.mark.few(1)
@pytest.mark.parametrize("case", cases(MODELS))
@torch.no_grad()
def test_programs_equal_those_of_eager_mode_in_every_bucket(case: Case, tmp_path: Path) -> None:
    """Programs over whole sequences are captured as they were lowered."""
    made = lowered(case)
    program, exported = made.program, made.program.exported
    Cuda().compile(exported, None, tmp_path)
    buckets = [Bucket(1, 9), Bucket(4, 16)]
    inputs = {bucket: inputs_of(made.program.inputs, bucket, takes_lengths=program.takes_lengths) for bucket in buckets}
    rehearsals = [rehearsal(bucket, inputs[bucket]) for bucket in buckets]
    run = load_on_device(GraphDevice(), {"sequence": tmp_path}, weights_of(exported), rehearsals)["sequence"]

    for bucket in buckets:
        for ours, theirs in zip(run(inputs[bucket]), exported.module()(*inputs[bucket]), strict=True):
            assert torch.allclose(ours, theirs, atol=1e-5, rtol=1e-5, equal_nan=True)
