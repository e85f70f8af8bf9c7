"""Results of earlier packagings: compiled programs, and comparisons of engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from torchserve_neuron_lstm.archiver_ext.evaluation import earlier_comparison, evaluate, trials
from torchserve_neuron_lstm.archiver_ext.evaluation.engine_times import EngineTimes
from torchserve_neuron_lstm.archiver_ext.evaluation.evaluate import EvaluatedEngine
from torchserve_neuron_lstm.archiver_ext.evaluation.tolerance_exceeded import ToleranceExceeded
from torchserve_neuron_lstm.archiver_ext.evaluation.verify_programs import verify_programs
from torchserve_neuron_lstm.handlers.runtime.loader import LoadedArchive

from ..conftest import Project
from .engine_trials import GRID, auto_tries, measure, names


def test_nothing_is_compiled_twice(
    package: Callable[..., Any], project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Other weights, another batchSize and another bucket find every program in the cache."""
    monkeypatch.setenv("NEURON_LSTM_CACHE", str(tmp_path / "cache"))

    first = package("onnxruntime", batch=[1, 2], length=[2, 4])
    other_weights(project)
    second = package("onnxruntime", batch=[1, 2, 4], length=[2, 4, 6])

    for report, cached in ((first, False), (second, True)):
        programs = report["engines"][0]["programs"]
        assert [program["cached"] for program in programs] == [cached] * len(programs)
        assert len(programs) > 0


LOST = {"eager": 1.0, "onnxruntime": 3.0}


def remember(monkeypatch: pytest.MonkeyPatch, cache: Path, milliseconds: Mapping[str, float], *, calm: bool) -> None:
    """Let every comparison of a packaging come to these figures."""
    monkeypatch.setenv("NEURON_LSTM_CACHE", str(cache))

    def compared(engines: Sequence[EvaluatedEngine], buckets: object = None) -> EngineTimes:
        return EngineTimes({one.result.backend: milliseconds[one.result.backend] for one in engines}, {}, calm)

    monkeypatch.setattr(trials, "measure_together", compared)


def other_weights(project: Project) -> None:
    """Write other weights of the same shapes."""
    torch.manual_seed(1)
    state = {name: value + 0.1 for name, value in torch.load(project.folder / "weights.pt").items()}
    torch.save(state, project.folder / "weights.pt")


def test_a_bound_is_later_not_taken_for_a_measured_time(
    package: Callable[..., Any], told: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The engine is left out again; a measured time as low would leave out the others."""
    auto_tries(monkeypatch, "bounded", "eager")
    monkeypatch.setenv("BOUND", "0.008")
    measure(monkeypatch, {"eager": 40.0}, further_ms=8.0, calm=False)
    monkeypatch.setenv("NEURON_LSTM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(earlier_comparison, "toolchain_versions", lambda _name: {})  # else that of a test is not kept

    reports = [package("auto", **GRID) for _ in range(2)]

    for report in reports:
        assert names(report) == ["eager"]
        assert names(report, "left_out") == ["bounded"]
    assert reports[0]["left_out"][0]["expected_ms"] * 1.5 < 40.0
    assert told() == []


@pytest.mark.parametrize("calm", [True, pytest.param(False, marks=pytest.mark.long)])
def test_an_engine_that_clearly_lost_is_not_tried_again(
    package: Callable[..., Any], project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, calm: bool
) -> None:
    """Other weights and another length are the same programs; the report has the earlier figures."""
    auto_tries(monkeypatch, "eager", "onnxruntime")
    remember(monkeypatch, tmp_path / "cache", LOST, calm=calm)

    first = package("auto", batch=[1, 2], length=[2, 4])
    other_weights(project)
    second = package("auto", batch=[1, 2], length=[2, 3, 4])
    named = package("{auto: {try: [eager, onnxruntime]}}", batch=[1, 2], length=[2, 4])
    more_rows = package("auto", batch=[1, 2, 4], length=[2, 4])

    assert names(first) == names(named) == names(more_rows) == ["eager", "onnxruntime"]
    assert names(second) == ["eager"]
    (out,) = second["left_out"]
    assert (out["backend"], out["expected_ms"]) == ("onnxruntime", 3.0)
    assert (out["fastest"], out["fastest_ms"]) == ("eager", 1.0)
    assert "it was slower when the same programs were packaged before: 3.00 ms" in out["reason"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("milliseconds", "calm"),
    [
        pytest.param({"eager": 1.0, "onnxruntime": 1.4}, False, id="disturbed"),
        pytest.param({"eager": 1.0, "onnxruntime": 1.15}, True, id="close", marks=pytest.mark.long),
    ],
)
def test_an_engine_that_did_not_clearly_lose_is_tried_again(
    package: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    milliseconds: Mapping[str, float],
    calm: bool,
) -> None:
    """A close comparison leaves nobody out; where other work disturbed it, a ratio of 1.4 is close."""
    auto_tries(monkeypatch, "eager", "onnxruntime")
    remember(monkeypatch, tmp_path / "cache", milliseconds, calm=calm)

    assert [names(package("auto")) for _ in range(2)] == [["eager", "onnxruntime"]] * 2


@pytest.mark.long
def test_an_engine_that_lost_is_tried_where_the_others_fail_now(
    package: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With other weights the fastest one may not be exact enough any more."""
    auto_tries(monkeypatch, "eager", "onnxruntime")
    remember(monkeypatch, tmp_path / "cache", LOST, calm=True)
    package("auto")

    def fails_eager(loaded: LoadedArchive, *rest: Any) -> Any:
        if loaded.manifest.backend == "eager":
            raise ToleranceExceeded("eager", (), (0.0, 0.0))
        return verify_programs(loaded, *rest)

    monkeypatch.setattr(evaluate, "verify_programs", fails_eager)
    report = package("auto")

    assert names(report) == ["onnxruntime"]
    assert names(report, "dropped") == ["eager"]
    assert report["left_out"] == []


def test_a_cache_that_cannot_be_used_is_told_and_nothing_fails(
    package: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The reason is in the report."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NEURON_LSTM_CACHE", str(tmp_path / "file"))

    report = package("eager")

    assert report["backend"] == "eager"
    assert any("compiled programs are not cached" in note for note in report["notes"])
