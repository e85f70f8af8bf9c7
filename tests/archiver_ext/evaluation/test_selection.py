"""Selection of the engines that are tried, and of their precision."""

from __future__ import annotations

import pytest

from torchserve_neuron_lstm.archiver_ext.errors import PackagingError
from torchserve_neuron_lstm.archiver_ext.evaluation.selection import candidate_engines
from torchserve_neuron_lstm.backends.cuda import engine
from torchserve_neuron_lstm.config.schema import ServingConfig


def config(**keys: object) -> ServingConfig:
    """A configuration with these keys in its block."""
    inputs = {"x": {"dtype": "float32", "shape": ["batch", "time", 3]}}
    return ServingConfig.model_validate({"inputs": inputs, "buckets": {"batch": [1], "length": [4]}, **keys})


def tried(wanted: str, precision: str) -> set[str]:
    """The names of engines that are compiled for or reported as unavailable."""
    engines, dropped = candidate_engines(config(backend=wanted, precision=precision))
    return {engine.name for engine in engines} | {out.backend for out in dropped}


def test_auto_tries_bfloat16_only_where_it_is_allowed() -> None:
    """The engines in float32 are tried too, because their answers are more exact."""
    assert tried("auto", "float32") == {"native", "onnxruntime", "cuda"}
    assert tried("auto", "bfloat16") == {"native", "onnxruntime", "cuda", "openvino"}
    assert tried("auto", "float16") == tried("auto", "float32")


def test_auto_tries_a_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere the reason is told, as for other engines that cannot be used."""
    monkeypatch.setattr(engine, "gpu_missing", lambda: "there is no GPU")
    _, rejected = candidate_engines(config(backend="auto"))
    assert [(one.backend, one.reason) for one in rejected if one.backend == "cuda"] == [("cuda", "there is no GPU")]
    monkeypatch.setattr(engine, "gpu_missing", lambda: None)
    assert "cuda" in tried("auto", "float32")


def test_an_engine_by_name_is_used_in_float32_as_well() -> None:
    """`backend: openvino` needs no bfloat16."""
    assert tried("openvino", "float32") == tried("openvino", "bfloat16") == {"openvino"}


@pytest.mark.parametrize("name", ["inductor", "onnxruntime", "eager"])
def test_an_engine_by_name_must_compute_in_what_is_asked_for(name: str) -> None:
    """The refusal names an engine that supports it."""
    with pytest.raises(PackagingError, match=f"precision: {name} computes only in float32, not in bfloat16.*openvino"):
        candidate_engines(config(backend=name, precision="bfloat16"))


def test_an_engine_of_other_low_precisions_is_refused_by_all_of_its_own() -> None:
    """bfloat16 has fewer digits than float16: it does not stand for it."""
    with pytest.raises(PackagingError, match=r"only in float32 or bfloat16, not in float16.*\(cuda\)"):
        candidate_engines(config(backend="openvino", precision="float16"))
    with pytest.raises(PackagingError, match="vollo computes only in bfloat16, not in float16"):
        candidate_engines(config(backend={"auto": {"try": ["vollo"]}}, precision="float16"))


def test_every_key_that_the_compiler_does_not_take_is_refused_at_once() -> None:
    """The message has its path in the YAML."""
    with pytest.raises(PackagingError) as refusal:
        candidate_engines(config(backend="eager", compiler_args="-O1", compiler_workdir="work"))
    assert str(refusal.value).splitlines() == [
        "neuron_lstm.compiler_workdir: eager does not support this option: leave it out",
        "neuron_lstm.compiler_args: eager does not support this option: leave it out",
    ]
