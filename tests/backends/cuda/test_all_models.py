"""Test models, and chunks of models with a carry, on a double of a GPU: exact against the model in eager mode."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from carrying_models import CARRYING, lowered_carrying
from chunked_models import assert_chunks_equal_whole_sequences
from graph_device import GraphDevice
from graph_programs import compiled_chunks
from model_batches import assert_equals_program
from model_cases import Case, cases
from torch import nn

from torchserve_neuron_lstm.backends.cuda.engine import load_on_device

MODELS = (
    *("Tagger", "ProjectedFourLayers", "GruWithState", "LstmWithState", "ResidualStack", "AttentionPooling"),
    *("SelfAttention", "MaskedMeanPooling", "TwoInputs", "LastStepClassifier", "VanillaRnn", "MeanOverTime"),
)


@pytest.mark.few(1)
@pytest.mark.parametrize("case", cases(MODELS))
@torch.no_grad()
def test_programs_equal_those_of_eager_mode_in_every_bucket(case: Case, tmp_path: Path) -> None:
    assert_equals_program(GraphDevice(), case, tmp_path)


LENGTHS = (9, 8, 5, 3, 1, 1)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", CARRYING)
def test_chunks_cut_anywhere_equal_the_whole_sequence(kind: Callable[[], nn.Module], tmp_path: Path) -> None:
    model, program = lowered_carrying(kind)
    directories, weights = compiled_chunks(program, tmp_path)
    device = GraphDevice()
    loaded = load_on_device(device, directories, weights)

    requests = [[torch.randn(length, 3)] for length in LENGTHS]
    assert_chunks_equal_whole_sequences(model, program, requests, LENGTHS, loaded)
    assert device.captured
