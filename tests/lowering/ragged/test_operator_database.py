"""Torch's own sample calls over ragged batches: each row is what the operator makes of the request alone."""

import pytest
import torch
from tools.operator_database.__main__ import COMPOSED, tried, with_a_rule

_GROUPS = 60


@pytest.mark.few(1)
@pytest.mark.parametrize("group", [pytest.param(g, marks=[pytest.mark.long] * (g % 2)) for g in range(_GROUPS)])
def test_no_row_of_a_sample_is_wrong(group: int) -> None:
    results = {name: tried(name, 1, [torch.float32]) for name in with_a_rule()[group::_GROUPS]}

    trials = [(name, trial) for name, found in results.items() for trial in found]
    assert trials
    assert [(name, trial.reason) for name, trial in trials if trial.outcome == "wrong"] == []


@pytest.mark.few(2)
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("name", ["sort", "topk", "argmax", "cummax", "amin", "scatter_add", "cat", "where"])
def test_no_row_of_integers_or_conditions_is_wrong(name: str, dtype: torch.dtype) -> None:
    assert [trial.reason for trial in tried(name, 1, [dtype]) if trial.outcome == "wrong"] == []


@pytest.mark.few(2)
@pytest.mark.parametrize("name", COMPOSED)
def test_operators_that_torch_composes_of_others_are_lowered(name: str) -> None:
    assert {trial.outcome for trial in tried(name, 1, [torch.float32])} <= {"lowered", "untraced"}
