"""Which engines are tried, in which precision."""

from __future__ import annotations

import pytest

from torchserve_neuron_lstm.archiver_ext.engines.candidates import to_try
from torchserve_neuron_lstm.archiver_ext.errors import PackagingError


def tried(wanted: str, precision: str) -> set[str]:
    """The names of engines that are compiled for or told to be unavailable."""
    engines, dropped = to_try(wanted, "bfloat16" if precision == "bfloat16" else "float32")
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
        to_try(name, "bfloat16")
