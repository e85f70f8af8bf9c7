"""Composed models: the same for every call, with every drawn feature, and sound in eager mode."""

from __future__ import annotations

import pytest
import torch
from composer.compose import compose, requests
from composer.model import LONGEST, ComposedWithLengths, alone

from torchserve_neuron_lstm.config.load import parse_config

CLASSES = {
    "embedding": "Embedding",
    "convolution": "Convolution",
    "stride": "StridedConvolution",
    "valid convolution": "ValidConvolution",
    "pooling": "Pooling",
    "upsampling": "Upsampling",
    "norm": "Norm",
    "attention": "Attention",
    "recurrence": "Recurrence",
    "cell loop": "CellLoop",
    "skip": "Skip",
    "concatenation": "Concatenation",
    "flip": "Flip",
    "elementwise": "Elementwise",
    "einsum": "Einsum",
    "transpose": "Transpose",
    "last step": "LastStep",
    "reduction": "Reduction",
}
SEEDS = range(40)


@pytest.mark.parametrize("seed", [0, 7, 2026])
def test_a_seed_is_one_model(seed: int) -> None:
    """Parts, variants, weights and configuration are the same for every call, whatever was drawn before."""
    first = compose(seed)
    torch.manual_seed(99)
    second = compose(seed)

    assert (first.features, first.yaml, repr(first.model)) == (second.features, second.yaml, repr(second.model))
    weights = second.model.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in first.model.state_dict().items())


def test_a_model_has_a_part_for_each_of_its_features() -> None:
    """No feature is lost between the draw and the model, and none is there twice."""
    for seed in SEEDS:
        composed = compose(seed)
        parts = [type(part).__name__ for part in composed.model.modules()]

        assert {name for name, kind in CLASSES.items() if parts.count(kind)} == set(composed.features)
        assert all(parts.count(CLASSES[feature]) == 1 for feature in composed.features)


def test_a_model_runs_on_every_length_alone() -> None:
    """One or two outputs, finite, for 1 to 16 timesteps; its configuration is valid."""
    for seed in SEEDS:
        composed = compose(seed)
        config = parse_config(composed.yaml, "model-config.yaml")
        assert (config.lengths is not None) == isinstance(composed.model, ComposedWithLengths)
        for item in requests(composed.model, [1, 2, 3, LONGEST], seed):
            outputs = alone(composed.model, item)
            assert 1 <= len(outputs) <= 2
            assert all(output.isfinite().all() for output in outputs)


def test_models_differ_in_layout_lengths_and_outputs() -> None:
    """Both orders of the dimensions, with and without lengths, ids and floats, one output and two."""
    models = [compose(seed).model for seed in SEEDS]

    assert {model.time for model in models} == {0, 1}
    assert {isinstance(model, ComposedWithLengths) for model in models} == {False, True}
    assert {model.embedding is None for model in models} == {False, True}
    assert {len(model.heads) for model in models} == {1, 2}


def test_a_batch_alone_is_what_forward_returns() -> None:
    """The reference is forward() itself on a batch of one request."""
    for seed in range(10):
        model = compose(seed).model
        (item,) = requests(model, [5], seed)
        batch = item.unsqueeze(1 - model.time)
        with torch.no_grad():
            found = model(batch, torch.tensor([5])) if isinstance(model, ComposedWithLengths) else model(batch)
        outputs = found if isinstance(found, tuple) else (found,)
        for own, output in zip(alone(model, item), outputs, strict=True):
            assert own.numel() == output.numel()
            assert torch.equal(own.reshape(-1), output.reshape(-1))
