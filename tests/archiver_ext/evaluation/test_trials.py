"""Trials of engines under `auto`: quick ones first, an expensive one only where it could win."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from torchserve_neuron_lstm.archiver_ext.evaluation import evaluate, trials
from torchserve_neuron_lstm.archiver_ext.evaluation.candidate import Candidate
from torchserve_neuron_lstm.archiver_ext.evaluation.evaluate import EvaluatedEngine
from torchserve_neuron_lstm.archiver_ext.evaluation.manifest_builder import BuildInput
from torchserve_neuron_lstm.backends.eager import Eager
from torchserve_neuron_lstm.backends.interface import CompileError
from torchserve_neuron_lstm.inference.reader import ArchiveReader

from ..conftest import Project
from .engine_trials import GRID, auto_tries, measure, names


def test_an_expensive_engine_that_cannot_win_is_compiled_for_two_buckets(
    package: Callable[..., Any], told: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report has it with the reason and the figures; the archive is that of the quick engine."""
    auto_tries(monkeypatch, "late", "eager")

    report = package("auto", **GRID)

    assert sorted(told()) == ["1 x 4", "3 x 4"]
    assert report["backend"] == "eager"
    assert [engine["backend"] for engine in report["engines"]] == ["eager"]
    (out,) = report["left_out"]
    assert (out["backend"], out["fastest"]) == ("late", "eager")
    assert [one["bucket"] for one in out["measured"]] == [[1, 4], [3, 4]]
    assert all(one["milliseconds"] >= 8 for one in out["measured"])
    assert out["expected_ms"] > out["fastest_ms"] == report["engines"][0]["total_ms"]


def test_the_printed_report_says_what_was_left_out(
    package: Callable[..., Any], told: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line has the figures and how to compile the engine nevertheless."""
    auto_tries(monkeypatch, "late", "eager")

    output = package("auto", as_json=False, **GRID)

    (line,) = (line for line in output.splitlines() if line.startswith("late was left out: "))
    assert "it cannot be the fastest: " in line
    assert "compiled for 2 of 6 buckets: 1 x 4 in " in line
    assert "backend: {auto: {try: [eager, late]}}" in line
    assert len(told()) == 2


@pytest.mark.parametrize("grid", [GRID, {"batch": [1], "length": [2, 4]}], ids=["grid", "one size"])
def test_an_expensive_engine_that_cannot_win_by_its_bound_is_not_compiled(
    package: Callable[..., Any], told: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch, grid: Any
) -> None:
    """The report has the figures of the bound; nobody waits for a compiler."""
    auto_tries(monkeypatch, "bounded", "eager")
    monkeypatch.setenv("BOUND", "0.008")
    measure(monkeypatch, {"eager": 1.0}, further_ms=8.0)

    report = package("auto", **grid)

    assert told() == []
    assert names(report) == ["eager"]
    (out,) = report["left_out"]
    assert (out["backend"], out["fastest"], out["measured"]) == ("bounded", "eager", [])
    assert out["expected_ms"] >= 8.0
    assert out["fastest_ms"] == report["engines"][0]["total_ms"] == 1.0
    assert "its recurrences alone take " in out["reason"]
    assert "measured without compiling: 1 x 4 in " in out["reason"]
    assert "backend: {auto: {try: [eager, bounded]}}" in out["reason"]


@pytest.mark.parametrize("bound", ["0", pytest.param("", marks=pytest.mark.long)])
def test_an_expensive_engine_that_could_win_by_its_bound_is_compiled_for_two_buckets(
    package: Callable[..., Any], told: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """A low bound says nothing, nor does none: what it was compiled for decides."""
    auto_tries(monkeypatch, "bounded", "eager")
    monkeypatch.setenv("BOUND", bound)

    report = package("auto", **GRID)

    assert sorted(told()) == ["1 x 4", "3 x 4"]
    assert names(report, "left_out") == ["bounded"]
    assert [one["bucket"] for one in report["left_out"][0]["measured"]] == [[1, 4], [3, 4]]


def test_a_low_bound_does_not_keep_the_fastest_engine_from_being_found(
    package: Callable[..., Any], told: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that is measured faster in two buckets is compiled for all, and packaged."""
    auto_tries(monkeypatch, "bounded", "eager")
    monkeypatch.setenv("BOUND", "0.001")
    measure(monkeypatch, {"eager": 10.0, "bounded": 5.0}, further_ms=1.0)

    report = package("auto", **GRID)

    assert report["left_out"] == []
    assert names(report) == ["bounded", "eager"]
    assert {"1 x 2", "2 x 4"} <= set(told())


def test_an_expensive_engine_that_could_win_is_compiled_for_all_buckets(
    package: Callable[..., Any], told: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is then measured beside the others, and the fastest is packaged."""
    auto_tries(monkeypatch, "late", "eager")
    monkeypatch.setattr(trials, "could_win", lambda expected_ms, fastest_ms, undisturbed: True)

    report = package("auto", **GRID)

    assert {"1 x 2", "1 x 4", "2 x 2", "2 x 4", "3 x 2", "3 x 4"} <= set(told())
    assert [engine["backend"] for engine in report["engines"]] == ["eager", "late"]
    assert report["left_out"] == []
    assert report["engines"][0]["total_ms"] < report["engines"][1]["total_ms"]


@pytest.mark.parametrize("wins", [pytest.param(False, marks=pytest.mark.long), True])
def test_an_expensive_engine_is_tried_for_a_model_with_sessions(
    package: Callable[..., Any],
    project: Project,
    told: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    wins: bool,
) -> None:
    """It is timed over whole sequences, without state. The archive has sessions whichever engine wins."""
    auto_tries(monkeypatch, "late", "eager")
    monkeypatch.setattr(trials, "could_win", lambda expected_ms, fastest_ms, undisturbed: wins)

    report = package("auto", more="  streaming: {}\n", **GRID)

    assert ArchiveReader(project.folder / "tiny.mar").manifest().streaming is not None
    assert [engine["backend"] for engine in report["engines"]] == ["eager", "late"][: 1 + wins]
    assert ("1 x 2" in told()) == wins


def test_an_expensive_engine_is_compiled_where_no_other_serves_the_model(
    package: Callable[..., Any], told: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nothing to compare it with, and the bound of time does not hold."""
    auto_tries(monkeypatch, "late", "eager")

    def refuse(*_: object) -> None:
        raise CompileError("not today")

    with monkeypatch.context() as patched:
        patched.setattr(Eager, "compile", refuse)
        patched.setattr(trials, "is_quick", lambda engine: engine.name == "eager")
        report = package("{auto: {time: 0s}}", **GRID)

    # Eager writes the programs of `late`, which is compiled in other processes.
    assert report["backend"] == "late"
    assert [dropped["backend"] for dropped in report["dropped"]] == ["eager"]
    assert "1 x 2" in told()


def test_engines_that_are_named_are_compiled_for_all_buckets(
    package: Callable[..., Any], told: Callable[[], list[str]]
) -> None:
    """Nothing else is tried."""
    report = package("{auto: {try: [late, eager]}}", **GRID)

    assert "2 x 2" in told()
    assert sorted(engine["backend"] for engine in report["engines"]) == ["eager", "late"]


@pytest.mark.parametrize("names", ["", "try: [late, eager], "])
def test_no_expensive_program_is_begun_after_the_time(
    package: Callable[..., Any], told: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch, names: str
) -> None:
    """Quick engines are tried whatever the time; the report says what was not."""
    auto_tries(monkeypatch, "late", "eager")

    report = package(f"{{auto: {{{names}time: 0s}}}}", **GRID)

    assert told() == []
    assert report["backend"] == "eager"
    (out,) = report["left_out"]
    assert out["backend"] == "late"
    assert "neuron_lstm.backend.auto.time: 0 s had passed" in out["reason"]


def test_an_expensive_engine_that_answers_wrongly_is_rejected_after_two_buckets(
    package: Callable[..., Any], told: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is verified before it is measured."""
    auto_tries(monkeypatch, "wrong", "eager")

    report = package("auto", **GRID)

    assert report["backend"] == "eager"
    (dropped,) = report["dropped"]
    assert dropped["backend"] == "wrong"
    assert "wrong differs from the model in eager mode by more than the tolerance" in dropped["reason"]
    assert told() == []


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("[natve]", "neuron_lstm.backend.auto.try: there is no backend 'natve' (did you mean native?)"),
        ("[unusable]", "neuron_lstm.backend.auto.try: unusable cannot be used here: no such chip here; buy one"),
        ("[simulated, eager]", "so its time cannot be compared: leave it out, or write backend: simulated"),
    ],
)
def test_an_engine_that_cannot_be_compared_is_refused(
    package: Callable[..., Any], told: Callable[[], list[str]], names: str, message: str
) -> None:
    """The message has the path of the key."""
    assert message in package(f"{{auto: {{try: {names}}}}}")
    assert told() == []


def test_an_engine_with_errors_of_its_own_class_is_rejected(
    package: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime's are no RuntimeError; the other engine is packaged."""
    auto_tries(monkeypatch, "onnxruntime", "eager")
    original = evaluate.evaluate_engine

    def failing(build: BuildInput, candidate: Candidate, *arguments: Any) -> EvaluatedEngine:
        if candidate.backend == "onnxruntime":
            raise InvalidArgument("Kernel size can't be greater")
        return original(build, candidate, *arguments)

    monkeypatch.setattr(trials, "evaluate_engine", failing)

    report = package("auto")

    assert names(report) == ["eager"]
    (rejected,) = report["dropped"]
    assert rejected["reason"].startswith("onnxruntime cannot run the programs that it compiled: Kernel size")
