"""Trials of engines under `auto`: quick ones first, an expensive one only where it could win."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import odd_engines
import pytest
import torch
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument
from python_path import python_path

from torchserve_neuron_lstm.archiver_ext import archive_command, model_archiver
from torchserve_neuron_lstm.archiver_ext.evaluation import earlier_comparison, evaluate, selection, trials
from torchserve_neuron_lstm.archiver_ext.evaluation.candidate import Candidate
from torchserve_neuron_lstm.archiver_ext.evaluation.engine_times import EngineTimes
from torchserve_neuron_lstm.archiver_ext.evaluation.evaluate import EvaluatedEngine
from torchserve_neuron_lstm.archiver_ext.evaluation.manifest_builder import BuildInput
from torchserve_neuron_lstm.archiver_ext.evaluation.tolerance_exceeded import ToleranceExceeded
from torchserve_neuron_lstm.archiver_ext.evaluation.verify_programs import verify_programs
from torchserve_neuron_lstm.backends.eager import Eager
from torchserve_neuron_lstm.backends.interface import CompileError
from torchserve_neuron_lstm.bucketing.shapes import Bucket
from torchserve_neuron_lstm.handlers.runtime.loader import LoadedArchive
from torchserve_neuron_lstm.handlers.runtime.measurement import Call
from torchserve_neuron_lstm.inference.reader import ArchiveReader

from ..conftest import Project

Report = Mapping[str, Any]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The buckets that the expensive engine, `late`, was compiled for since the last call."""
    site = odd_engines.install(tmp_path / "site")
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", python_path(site))
    monkeypatch.setenv("LATE_TELLS", str(tmp_path / "told"))

    def lines() -> list[str]:
        found = (tmp_path / "told").read_text().splitlines() if (tmp_path / "told").exists() else []
        (tmp_path / "told").write_text("")
        return found

    return lines


@pytest.fixture
def package(project: Project, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Package in this process: the report as JSON, or the error message. Nothing is found in a cache."""
    monkeypatch.setenv("NEURON_LSTM_CACHE", "off")
    monkeypatch.chdir(project.folder)
    monkeypatch.setenv("TMPDIR", str(project.temporary))
    monkeypatch.setattr("tempfile.tempdir", str(project.temporary))

    def run(
        backend: str,
        as_json: bool = True,
        batch: Sequence[int] = (1, 2),
        length: Sequence[int] = (2, 4),
        more: str = "",
    ) -> Any:
        project.configure(backend=backend, batch=batch, length=length)
        with (project.folder / "model-config.yaml").open("a") as config:
            config.write(more)
        words = [*project.flags(), "--handler", "neuron_lstm", "--export-path", str(project.folder), "--force"]
        flags = model_archiver.parse(words)
        code = archive_command.archive(flags, model_archiver.manifest_json(flags), as_json=as_json)
        output, error = capfd.readouterr()
        return error if code else json.loads(output) if as_json else output

    return run


def auto_tries(monkeypatch: pytest.MonkeyPatch, *names: str, fallback: Sequence[str] = ()) -> None:
    """Let `auto` try these engines."""
    monkeypatch.setattr(selection, "auto_engines", lambda purpose: fallback if purpose == "fallback" else names)


def measure(
    monkeypatch: pytest.MonkeyPatch, totals: Mapping[str, float], further_ms: float, *, calm: bool = True
) -> None:
    """Let each comparison come to these milliseconds, of the engines and of each call of a further engine."""

    def compared(engines: Sequence[EvaluatedEngine], further: Mapping[Bucket, Call] | None = None) -> EngineTimes:
        for call in (further or {}).values():
            call()
        found = {one.result.backend: totals[one.result.backend] for one in engines}
        return EngineTimes(found, dict.fromkeys(further or {}, further_ms), undisturbed=calm)

    monkeypatch.setattr(trials, "measure_together", compared)


GRID = {"batch": [1, 2, 3], "length": [2, 4]}


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


def other_weights(project: Project) -> None:
    """Write other weights of the same shapes."""
    torch.manual_seed(1)
    state = {name: value + 0.1 for name, value in torch.load(project.folder / "weights.pt").items()}
    torch.save(state, project.folder / "weights.pt")


def names(report: Report, part: str = "engines") -> list[str]:
    """The engines in a part of the report."""
    return [engine["backend"] for engine in report[part]]


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
