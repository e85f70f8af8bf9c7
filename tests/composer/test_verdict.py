"""Verdicts: 40 composed models are right at every length, and what is wrong is noticed."""

from __future__ import annotations

import copy
import random
from dataclasses import replace

import pytest
import torch
from composer.model import ComposedModel, ComposedOfSequences, configuration
from composer.part import Place
from composer.summaries import Reduction
from composer.verdict import differences_of, judge
from torch import nn

from torchserve_neuron_lstm.config.load import parse_config
from torchserve_neuron_lstm.lowering.lower import lower, lower_batch

SEEDS = (0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 40)))
"""The first ones of `make compose`, one of them in `make test`."""
NOT_ACCEPTED = frozenset((17, 35))
"""Refused seeds: the exporter does not vouch for a bucket of four timesteps. None may be added."""


@pytest.mark.parametrize("seed", SEEDS)
def test_a_composed_model_is_right_at_every_length(seed: int) -> None:
    """It is refused, or equals each request alone in 20 ragged batches with garbage in padding and rows."""
    verdict = judge(seed)

    assert verdict.outcome in ("accepted", "refused", "bucket lengths only"), verdict.message
    if seed not in NOT_ACCEPTED:
        assert verdict.outcome == "accepted", f"{verdict.message}; {verdict.because}"


def _mean_model() -> ComposedModel:
    torch.manual_seed(0)
    head = Reduction(random.Random(0), Place(1, 4, 1, lengths=False))
    head.variant = "mean"
    model = ComposedOfSequences(None, [], [head], 1, 4).eval()
    return ComposedModel(0, ("reduction",), model, configuration(4, ids=False, time=1, lengths=False))


def test_padding_that_reaches_an_output_is_noticed() -> None:
    """A mean over time, exported for a padded batch, counts the padding."""
    composed = _mean_model()
    wrong = replace(lower_batch(composed.model, parse_config(composed.yaml, "m.yaml")), padding="masked")

    found = list(differences_of(composed, wrong, 20))

    assert any(finite for _, finite in found)
    assert "in padding" in found[0][0]


def test_another_row_that_reaches_an_output_is_noticed() -> None:
    """A row that is all NaN makes every answer NaN, or a permutation changes the answers."""
    composed = _mean_model()
    right = lower(composed.model, parse_config(composed.yaml, "m.yaml"))
    graph = right.exported.graph_module.graph
    output = next(node for node in graph.nodes if node.op == "output")
    (result,) = output.all_input_nodes
    with graph.inserting_before(output):
        mixed = graph.call_function(torch.ops.aten.cumsum.default, (result, 0))
        mixed.meta = dict(result.meta)
    output.replace_input_with(result, mixed)
    for spec in right.exported.graph_signature.output_specs:
        spec.arg.name = mixed.name
    right.exported.graph_module.recompile()

    assert list(differences_of(composed, right, 20))


def test_a_weight_that_changed_is_noticed() -> None:
    """The reference is the model itself: an error of 1e-3 in a weight is found."""
    composed = _composed_linear()
    lowered = lower(copy.deepcopy(composed.model), parse_config(composed.yaml, "m.yaml"))
    assert list(differences_of(composed, lowered, 20)) == []

    with torch.no_grad():
        next(composed.model.heads.parameters()).add_(1e-3)

    assert list(differences_of(composed, lowered, 20))


def _composed_linear() -> ComposedModel:
    torch.manual_seed(0)
    model = ComposedOfSequences(None, [], [nn.Linear(4, 3)], 1, 4).eval()
    return ComposedModel(0, (), model, configuration(4, ids=False, time=1, lengths=False))
