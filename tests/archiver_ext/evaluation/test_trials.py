import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import odd_engines
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from torchserve_neuron_lstm.archiver_ext.evaluation import evaluate, selection, trials
from torchserve_neuron_lstm.archiver_ext.evaluation.candidate import Candidate
from torchserve_neuron_lstm.archiver_ext.evaluation.evaluate import EvaluatedEngine
from torchserve_neuron_lstm.archiver_ext.evaluation.manifest_builder import BuildInput

from ..conftest import Package, Project

GRID = {"batch": [1, 2, 3], "length": [2, 4]}


def auto_tries(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr(selection, "auto_engines", lambda purpose: () if purpose == "fallback" else names)


def names(report: Mapping[str, Any]) -> list[str]:
    return [engine["backend"] for engine in report["engines"]]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The buckets that the expensive engine, `late`, was compiled for since the last call."""
    odd_engines.use(monkeypatch, tmp_path / "site")
    monkeypatch.setenv("LATE_TELLS", str(tmp_path / "told"))

    def lines() -> list[str]:
        found = (tmp_path / "told").read_text().splitlines() if (tmp_path / "told").exists() else []
        (tmp_path / "told").write_text("")
        return found

    return lines


@pytest.fixture
def trial(project: Project, package: Package) -> Callable[..., Any]:
    def run(backend: str, *more: str, batch: Sequence[int] = (1, 2), length: Sequence[int] = (2, 4)) -> Any:
        project.configure(backend=backend, batch=batch, length=length)
        code, output, error = package("--force", *more)
        return error if code else json.loads(output) if "--json" in more else output

    return run


@pytest.mark.ci
@pytest.mark.parametrize("backend", ["auto", "{auto: {try: [late, eager]}}"])
def test_the_engines_to_compare_are_compiled_for_all_buckets_and_the_fastest_is_packaged(
    backend: str, trial: Callable[..., Any], told: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    auto_tries(monkeypatch, *(["late", "eager"] if backend == "auto" else ["eager"]))

    report = trial(backend, "--json", **GRID)

    assert {"1 x 2", "1 x 4", "2 x 2", "2 x 4", "3 x 2", "3 x 4"} <= set(told())
    assert names(report) == ["eager", "late"]
    fastest, slower = (engine["total_ms"] for engine in report["engines"])
    assert slower > 3 * 8 > fastest


@pytest.mark.ci
def test_an_engine_that_saves_little_does_not_replace_the_one_before_it(
    trial: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    auto_tries(monkeypatch, "eager", "onnxruntime")
    monkeypatch.setattr(selection, "measured_totals", lambda _: {"eager": 10.0, "onnxruntime": 9.0})

    output = trial("auto")

    assert output.splitlines()[0].endswith(
        "eager in float32, since no other saves more than 15%: 10.00 ms for one batch of each size; onnxruntime 9.00 ms"
    )


def test_an_engine_that_answers_wrongly_is_rejected(
    trial: Callable[..., Any], told: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    auto_tries(monkeypatch, "wrong", "eager")

    report = trial("auto", "--json", **GRID)

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
    trial: Callable[..., Any], told: Callable[[], list[str]], names: str, message: str
) -> None:
    assert message in trial(f"{{auto: {{try: {names}}}}}")
    assert told() == []


@pytest.mark.ci
def test_an_engine_with_errors_of_its_own_class_is_rejected(
    trial: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    auto_tries(monkeypatch, "onnxruntime", "eager")
    original = evaluate.evaluate_engine

    def failing(build: BuildInput, candidate: Candidate, *arguments: Any) -> EvaluatedEngine:
        if candidate.backend == "onnxruntime":
            raise InvalidArgument("Kernel size can't be greater")
        return original(build, candidate, *arguments)

    monkeypatch.setattr(trials, "evaluate_engine", failing)

    report = trial("auto", "--json")

    assert names(report) == ["eager"]
    (rejected,) = report["dropped"]
    assert rejected["reason"].startswith("onnxruntime cannot run the programs that it compiled: Kernel size")
