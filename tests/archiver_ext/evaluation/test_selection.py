import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_machine import Machine

from torchserve_neuron_lstm.archiver_ext.errors import PackagingError
from torchserve_neuron_lstm.archiver_ext.evaluation.selection import MARGIN, candidate_engines, preferred, total_ms
from torchserve_neuron_lstm.backends.cuda import engine
from torchserve_neuron_lstm.config.schema import ServingConfig


def config(**keys: object) -> ServingConfig:
    inputs = {"x": {"dtype": "float32", "shape": ["batch", "time", 3]}}
    return ServingConfig.model_validate({"inputs": inputs, "buckets": {"batch": [1], "length": [4]}, **keys})


def tried(wanted: str, precision: str) -> set[str]:
    engines, dropped = candidate_engines(config(backend=wanted, precision=precision))
    return {engine.name for engine in engines} | {out.backend for out in dropped}


def test_auto_tries_bfloat16_only_where_it_is_allowed() -> None:
    """The engines in float32 are tried too, because their answers are more exact."""
    assert tried("auto", "float32") - {"cuda"} == {"native", "onnxruntime"}
    assert tried("auto", "bfloat16") - {"cuda"} == {"native", "onnxruntime", "openvino"}
    assert tried("auto", "float16") == tried("auto", "float32")


def test_auto_tries_a_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "gpu_missing", lambda: "there is no GPU")
    assert "cuda" not in tried("auto", "float32")
    _, rejected = candidate_engines(config(backend={"auto": {"try": ["native", "cuda"]}}))
    assert [(one.backend, one.reason) for one in rejected if one.backend == "cuda"] == [("cuda", "there is no GPU")]
    monkeypatch.setattr(engine, "gpu_missing", lambda: None)
    assert "cuda" in tried("auto", "float32")


def test_an_engine_by_name_is_used_in_float32_as_well() -> None:
    assert tried("openvino", "float32") == tried("openvino", "bfloat16") == {"openvino"}


@pytest.mark.parametrize("name", ["inductor", "onnxruntime", "eager"])
def test_an_engine_by_name_must_compute_in_what_is_asked_for(name: str) -> None:
    with pytest.raises(PackagingError, match=f"precision: {name} computes only in float32, not in bfloat16.*openvino"):
        candidate_engines(config(backend=name, precision="bfloat16"))


def test_an_engine_of_other_low_precisions_is_refused_by_all_of_its_own() -> None:
    """bfloat16 has fewer digits than float16: it does not stand for it."""
    with pytest.raises(PackagingError, match=r"only in float32 or bfloat16, not in float16.*\(cuda\)"):
        candidate_engines(config(backend="openvino", precision="float16"))
    with pytest.raises(PackagingError, match="vollo computes only in bfloat16, not in float16"):
        candidate_engines(config(backend={"auto": {"try": ["vollo"]}}, precision="float16"))


def test_every_key_that_the_compiler_does_not_take_is_refused_at_once() -> None:
    with pytest.raises(PackagingError) as refusal:
        candidate_engines(config(backend="eager", compiler_args="-O1", compiler_workdir="work"))
    assert str(refusal.value).splitlines() == [
        "neuron_lstm.compiler_workdir: eager does not support this option: leave it out",
        "neuron_lstm.compiler_args: eager does not support this option: leave it out",
    ]


def compare(machine: Machine, **milliseconds: float) -> str:
    calls = {name: machine.costing(name, ms) for name, ms in milliseconds.items()}
    return preferred(total_ms([calls], machine))


def test_engines_take_turns_in_both_orders() -> None:
    machine = Machine()

    assert compare(machine, a=30, b=30, c=30) == "a"
    assert "".join(machine.ran) == "aabbccccbbaa" * 2 + "aabbcc"


@pytest.mark.parametrize("seed", range(10))
def test_other_work_on_all_cores_does_not_decide_by_short_calls(seed: int) -> None:
    """Most calls of the engine whose threads wait for each other take ten times as long, most others twice.

    So their medians are in the wrong order.
    """
    chance = random.Random(seed)
    most = {"native": (5.0, 30.0), "other": (1.5, 4.0)}

    def slowdown(name: str, _: float) -> float:
        return chance.uniform(1.0, 1.1) if chance.random() < 0.2 else chance.uniform(*most[name])

    assert compare(Machine(), native=0.4, other=1.0) == "native"
    assert compare(Machine(slowdown), native=0.4, other=1.0) == "native"


@pytest.mark.parametrize("seed", range(10))
def test_other_work_on_all_cores_does_not_decide_by_long_calls(seed: int) -> None:
    chance = random.Random(seed)

    def slowdown(*_: object) -> float:
        return chance.uniform(3.0, 8.0)

    assert compare(Machine(), native=60, other=30) == "other"
    assert compare(Machine(slowdown), native=60, other=30) == "other"


@pytest.mark.parametrize(("begin", "end"), [(0.0, 0.3), (0.1, 0.6), (0.25, 99.0)])
def test_work_that_begins_or_ends_meanwhile_does_not_decide(begin: float, end: float) -> None:
    machine = Machine(lambda _, now: 5.0 if begin <= now < end else 1.0)

    assert compare(machine, slow=12, fast=10) == "fast"


def test_rounds_end_at_the_limit() -> None:
    machine = Machine(lambda _, now: 1 + 3 * now)
    compare(machine, a=100, b=100)

    assert machine.ran.count("a") == machine.ran.count("b") == 2 * 6  # one more round passes the limit


def test_a_batch_whose_times_are_settled_is_not_repeated_with_the_others() -> None:
    machine = Machine(lambda name, now: 5.0 if name == "long" and now < 1 else 1.0)
    totals = total_ms([{"a": machine.costing("short", 2)}, {"a": machine.costing("long", 50)}], machine)

    assert totals["a"] == pytest.approx(52)
    assert machine.ran.count("short") == 2 * 5
    assert machine.ran.count("long") > 2 * 5


TIMES = st.lists(st.floats(0.1, 100), min_size=1, max_size=4)


@given(TIMES)
def test_the_first_engine_within_the_margin_is_selected(times: list[float]) -> None:
    chosen = int(preferred({str(index): ms for index, ms in enumerate(times)}))

    assert min(times) >= (1 - MARGIN) * times[chosen]
    assert all(min(times) < (1 - MARGIN) * ms for ms in times[:chosen])


@given(TIMES, st.lists(st.floats(1.0, 1.02), min_size=4, max_size=4))
def test_small_differences_of_measurements_do_not_change_the_choice(times: list[float], noise: list[float]) -> None:
    if any(0.80 < second / first < 0.90 for first in times for second in times):
        return
    totals = {str(index): ms for index, ms in enumerate(times)}
    again = {name: ms * ratio for (name, ms), ratio in zip(totals.items(), noise, strict=False)}

    assert preferred(totals) == preferred(again)
