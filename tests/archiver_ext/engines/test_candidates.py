"""Which engines are tried, in which precision."""

from __future__ import annotations

import pytest

from torchserve_neuron_lstm.archiver_ext.engines.candidates import to_try
from torchserve_neuron_lstm.archiver_ext.errors import PackagingError
from torchserve_neuron_lstm.config.schema import ServingConfig


def config(**keys: object) -> ServingConfig:
    """A configuration with these keys in its block."""
    inputs = {"x": {"dtype": "float32", "shape": ["batch", "time", 3]}}
    return ServingConfig.model_validate({"inputs": inputs, "buckets": {"batch": [1], "length": [4]}, **keys})


def tried(wanted: str, precision: str) -> set[str]:
    """The names of engines that are compiled for or told to be unavailable."""
    engines, dropped = to_try(config(backend=wanted, precision=precision))
    return {engine.name for engine in engines} | {out.backend for out in dropped}


def test_auto_tries_bfloat16_only_where_it_is_allowed() -> None:
    """And never instead of the engines in float32, whose answers are good enough for it."""
    assert tried("auto", "float32") == {"inductor", "onnxruntime"}
    assert tried("auto", "bfloat16") == {"inductor", "onnxruntime", "openvino"}


def test_an_engine_by_name_is_used_in_float32_as_well() -> None:
    """`backend: openvino` needs no bfloat16."""
    assert tried("openvino", "float32") == tried("openvino", "bfloat16") == {"openvino"}


@pytest.mark.parametrize("name", ["inductor", "onnxruntime", "eager"])
def test_an_engine_by_name_must_compute_in_what_is_asked_for(name: str) -> None:
    """The refusal says which one does."""
    with pytest.raises(PackagingError, match=f"precision: {name} computes in float32 alone, not in bfloat16.*openvino"):
        to_try(config(backend=name, precision="bfloat16"))


def test_every_key_that_the_compiler_does_not_take_is_refused_at_once() -> None:
    """By its path in the YAML."""
    with pytest.raises(PackagingError) as refusal:
        to_try(config(backend="eager", compiler_args="-O1", compiler_workdir="work"))
    assert str(refusal.value).splitlines() == [
        "neuron_lstm.compiler_workdir: eager has nothing to do with it: leave it out",
        "neuron_lstm.compiler_args: eager has nothing to do with it: leave it out",
    ]
