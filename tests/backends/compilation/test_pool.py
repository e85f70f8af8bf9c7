import os
import re
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import odd_engines
import pytest
import torch
from python_path import python_path
from running import is_running
from waiting import wait_for

from torchserve_neuron_lstm.backends.compilation.job import CompileFailure, CompileJob, CompileResult
from torchserve_neuron_lstm.backends.compilation.pool import compile_all, compile_processes
from torchserve_neuron_lstm.backends.registry import get_backend
from torchserve_neuron_lstm.bucketing.shapes import Bucket

Compiling = Callable[..., list[CompileResult | CompileFailure]]
BUCKETS = (Bucket(1, 2), Bucket(1, 4), Bucket(2, 4))


class Times(torch.nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.number * x,)


def saved(number: int, file: Path) -> Path:
    torch.export.save(torch.export.export(Times(number), (torch.zeros(2),)), file)
    return file


@pytest.fixture
def compiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiling:
    monkeypatch.setenv("PYTHONPATH", python_path(odd_engines.install(tmp_path / "site")))
    monkeypatch.setenv("SLOW_PIDS", str(tmp_path / "pids"))
    program = saved(2, tmp_path / "program.pt2")

    def run(*names: str, buckets: Sequence[Bucket] = BUCKETS) -> list[CompileResult | CompileFailure]:
        jobs = [
            CompileJob(name, "sequence", bucket, program, tmp_path / name / str(bucket.length * bucket.batch))
            for name in names
            for bucket in buckets
        ]
        reported: list[CompileResult | CompileFailure] = []
        with compile_processes(tmp_path / "scratch") as processes:
            results = compile_all(jobs, processes, reported.append)
        assert reported == results
        return results

    return run


@pytest.mark.ci
def test_every_job_is_done_whatever_the_engine_prints(compiling: Compiling) -> None:
    results = compiling("good")

    assert {result.job.bucket for result in results} == set(BUCKETS)
    assert all(isinstance(result, CompileResult) and result.seconds > 0 and result.size > 0 for result in results)


def test_every_job_has_its_own_program(tmp_path: Path) -> None:
    programs = {part: saved(number, tmp_path / f"{part}.pt2") for part, number in (("chunk", 2), ("head", 3))}
    jobs = [CompileJob("eager", "chunk", None, programs["chunk"], tmp_path / "chunk")]
    jobs.append(CompileJob("eager", "head", Bucket(2, 1), programs["head"], tmp_path / "head"))

    with compile_processes(tmp_path / "scratch") as processes:
        results = compile_all(jobs, processes, lambda result: None)

    assert sorted(str(result.job) for result in results) == ["eager chunk any shape", "eager head 2 x 1"]
    answers = {
        job.part: get_backend("eager").load(job.directory, {}, {}, 1)([torch.ones(2)])[0].tolist() for job in jobs
    }
    assert answers == {"chunk": [2.0, 2.0], "head": [3.0, 3.0]}


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        ("refuses", r"no \d x \d here"),
        ("dies", "ended by SIGABRT"),
        pytest.param("raises", "ValueError: something odd", marks=pytest.mark.long),
    ],
)
def test_an_engine_that_fails_is_out_and_the_others_go_on(compiling: Compiling, engine: str, reason: str) -> None:
    results = compiling(engine, "good")
    failed = [result for result in results if isinstance(result, CompileFailure)]

    assert {result.job.backend for result in failed} == {engine}
    assert any(re.search(reason, result.reason) for result in failed)
    assert len([result for result in results if isinstance(result, CompileResult)]) == len(BUCKETS)


def test_the_reason_has_the_standard_error_of_a_dead_process(
    compiling: Compiling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIES_PIDS", str(tmp_path / "of_dies"))
    (result, *_) = compiling("dies", buckets=BUCKETS[:1])

    assert isinstance(result, CompileFailure)
    assert "last words" in result.reason
    wait_for(lambda: not is_running(int((tmp_path / "of_dies").read_text())))


def test_processes_are_kept_for_the_programs_to_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would import torch again. They end with the block, and also when a job of theirs is given up."""
    monkeypatch.setenv("PYTHONPATH", python_path(odd_engines.install(tmp_path / "site")))
    monkeypatch.setenv("GOOD_PIDS", str(tmp_path / "pids"))
    program = saved(2, tmp_path / "program.pt2")

    with compile_processes(tmp_path / "scratch") as processes:
        for turn in range(2):
            compile_all([CompileJob("good", "sequence", BUCKETS[0], program, tmp_path / f"{turn}")], processes, print)
        first, second = map(int, (tmp_path / "pids").read_text().split())
        runs_between = is_running(first)
        processes.stop()
        compile_all([CompileJob("good", "sequence", BUCKETS[0], program, tmp_path / "2")], processes, print)
    *_, third = map(int, (tmp_path / "pids").read_text().split())

    assert runs_between
    assert first == second != third
    assert not is_running(first)
    assert not is_running(third)


def test_nothing_runs_on_when_compiling_is_interrupted(compiling: Compiling, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    threading.Thread(target=_interrupt_when, args=(pids,), daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        compiling("slow")

    started = [int(pid) for pid in pids.read_text().split()]
    assert len(started) >= 2
    wait_for(lambda: not any(map(is_running, started)))


def _interrupt_when(pids: Path) -> None:
    wait_for(lambda: pids.exists() and pids.read_text().endswith("\n"))
    os.kill(os.getpid(), signal.SIGINT)
