"""Test models, and chunks of models with a carry, on a double of a GPU: exact against the model in eager mode."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from carrying_models import CARRYING
from graph_device import GraphDevice
from model_batches import assert_chunks_equal_model, assert_equals_program
from model_cases import Case, cases
from torch import nn

MODELS = (
    *("Tagger", "ProjectedFourLayers", "GruWithState", "LstmWithState", "ResidualStack", "AttentionPooling"),
    *("SelfAttention", "MaskedMeanPooling", "TwoInputs", "LastStepClassifier", "VanillaRnn", "MeanOverTime"),
)


@pytest.mark.few(1)
@pytest.mark.parametrize("case", cases(MODELS))
@torch.no_grad()
def test_programs_equal_those_of_eager_mode_in_every_bucket(case: Case, tmp_path: Path) -> None:
    assert_equals_program(GraphDevice(), case, tmp_path)


@pytest.mark.ci
@pytest.mark.parametrize("kind", CARRYING)
def test_chunks_cut_anywhere_equal_the_whole_sequence(kind: Callable[[], nn.Module], tmp_path: Path) -> None:
    device = GraphDevice()
    assert_chunks_equal_model(device, kind, tmp_path)
    assert device.captured
