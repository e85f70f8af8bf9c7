"""Test models on a double of a GPU: exact against the model in eager mode, each row alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from graph_device import GraphDevice
from model_batches import assert_equals_program
from model_cases import Case, cases

MODELS = (
    *("Tagger", "ProjectedFourLayers", "GruWithState", "LstmWithState", "ResidualStack", "AttentionPooling"),
    *("SelfAttention", "MaskedMeanPooling", "TwoInputs", "LastStepClassifier", "VanillaRnn", "MeanOverTime"),
)


@pytest.mark.few(1)
@pytest.mark.parametrize("case", cases(MODELS))
@torch.no_grad()
def test_programs_equal_those_of_eager_mode_in_every_bucket(case: Case, tmp_path: Path) -> None:
    assert_equals_program(GraphDevice(), case, tmp_path)
