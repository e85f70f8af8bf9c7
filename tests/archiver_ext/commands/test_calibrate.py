"""`neuron-lstm calibrate`: it writes this host's milliseconds into an archive, and changes only those."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_archive import GRID, make_archive

from torchserve_neuron_lstm.archiver_ext import cli
from torchserve_neuron_lstm.bucketing.shapes import Bucket
from torchserve_neuron_lstm.config.manifest import CostMeasurement, Manifest, MeasuredCost, read_manifest
from torchserve_neuron_lstm.handlers.runtime.cost_samples import CostKey, Slice, contradiction_doubts
from torchserve_neuron_lstm.handlers.runtime.doubtful_costs import costs_of
from torchserve_neuron_lstm.inference.reader import ArchiveReader

ABSURD_MS = 1e9
COSTS = tuple(MeasuredCost("sequence", bucket, ABSURD_MS) for bucket in GRID.buckets)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An archive for every shape, with measurements that are impossible on any host."""
    return make_archive(tmp_path / "archive", shapes="any", costs=COSTS)


@pytest.fixture
def ragged(tmp_path: Path) -> Path:
    """The same archive, with measured costs of padding."""
    return make_archive(tmp_path / "ragged", shapes="any", costs=COSTS, padding_costs=COSTS[:1])


def calibrated(archive: Path, *words: object) -> Manifest:
    """The manifest of the archive after the command."""
    assert cli.main(["calibrate", str(archive), "--threads", "1", *map(str, words)]) == 0
    return read_manifest(archive)


def buckets(costs: tuple[MeasuredCost, ...]) -> set[Bucket]:
    """The buckets of the costs, which must all be measured on this machine."""
    assert {cost.part for cost in costs} == {"sequence"}
    assert all(0 < cost.milliseconds < ABSURD_MS for cost in costs)
    return {cost.bucket for cost in costs}


def test_full_calls_are_measured_again_and_nothing_else_changes(archive: Path) -> None:
    """The cost of padding stays unknown for an engine that computes padding as data."""
    before = read_manifest(archive)

    after = calibrated(archive)

    assert buckets(after.costs) >= set(GRID.buckets)
    assert replace(after, costs=before.costs, measurement=None) == before
    assert after.padding_costs == ()


def test_what_padding_costs_is_measured_again_where_it_was_known(ragged: Path) -> None:
    """The shapes are those of the full calls, because plans use both."""
    before = read_manifest(ragged)

    after = calibrated(ragged)

    assert buckets(after.padding_costs) == buckets(after.costs) >= set(GRID.buckets)
    assert replace(after, costs=before.costs, padding_costs=before.padding_costs, measurement=None) == before


def test_another_archive_may_be_written_and_machines_are_told_both(
    archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The given archive is not changed."""
    before = read_manifest(archive)

    assert calibrated(archive, "-o", tmp_path / "other", "--json") == before

    told = json.loads(capsys.readouterr().out)
    measured = read_manifest(tmp_path / "other").costs
    assert [cost["milliseconds"] for cost in told["costs"]] == [cost.milliseconds for cost in measured]
    assert {cost["before"] for cost in told["costs"]} == {ABSURD_MS, None}
    assert 0 < told["ratio"] < 1


def without_cores(calls: Mapping[CostKey, object], **_: object) -> dict[CostKey, list[Slice]]:
    """The measurement of a machine whose cores others have all the time."""
    return {key: [Slice(4.0, 8.0, 8.0)] * 3 for key in calls}


def test_costs_of_a_busy_machine_are_marked_and_told(
    archive: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Standard error says so in plain words, the JSON and the manifest name the reason."""
    from torchserve_neuron_lstm.archiver_ext.evaluation import calibrate

    monkeypatch.setattr(calibrate, "measure", without_cores)

    marked = calibrated(archive, "--json").measurement

    shown = capsys.readouterr()
    assert marked is not None
    assert "costs were measured while threads waited for cores" in marked.doubts[0]
    assert json.loads(shown.out)["doubts"] == list(marked.doubts)
    assert f"the measured costs are doubtful: {marked.doubts[0]}" in shown.err
    assert "calibrate` does while nothing else runs" in shown.err


def test_costs_of_a_quiet_machine_remove_the_mark(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server then plans by them as they are."""
    from torchserve_neuron_lstm.archiver_ext.evaluation import calibrate

    def quiet(calls: Mapping[CostKey, object], **_: object) -> dict[CostKey, list[Slice]]:
        return {key: [Slice(4.0, 8.0, 0.0)] * 3 for key in calls}

    monkeypatch.setattr(calibrate, "measure", without_cores)
    assert calibrated(archive).measurement != CostMeasurement(1)
    monkeypatch.setattr(calibrate, "measure", quiet)

    assert calibrated(archive).measurement == CostMeasurement(1)


def test_people_see_padding_threads_and_operators_on_the_cpu(
    native_archive: Path, divided_archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An archive whose engine stops rows, and one that is divided between an engine and the CPU."""
    padded = shutil.copy(native_archive, tmp_path)
    divided = shutil.copy(divided_archive, tmp_path)

    assert cli.main(["calibrate", str(padded), "--threads", "1"]) == 0
    shown = capsys.readouterr().out
    assert "padded ms" in shown
    assert "costs were measured with 1 thread\n" in shown
    assert "native stops each row at its own end" in shown
    assert cli.main(["calibrate", str(divided), "--threads", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["on_cpu"] == ["aten::linear"]
    assert told["threads"] == 1
    assert {cost["padding_milliseconds"] for cost in told["costs"]} == {None}


def _on(cores: list[int]) -> str:
    """Python code that pins a process to some cores."""
    return f"import os; os.sched_setaffinity(0, {cores})"


@pytest.mark.long
def test_beside_other_work_costs_are_consistent_or_doubtful(native_archive: Path, tmp_path: Path) -> None:
    """Two threads of a real program, and a process that takes one of two cores from them all the time."""
    archive = shutil.copy(native_archive, tmp_path)
    cores = sorted(os.sched_getaffinity(0))[:2]
    calibrate = f"from {cli.__name__} import main; main(['calibrate', {str(archive)!r}, '--threads', '2'])"
    hog = subprocess.Popen([sys.executable, "-c", f"{_on(cores[:1])}\nwhile True: pass"])
    try:
        done = subprocess.run(
            [sys.executable, "-c", f"{_on(cores)}\n{calibrate}"], capture_output=True, text=True, check=False
        )
    finally:
        hog.kill()
        hog.wait()

    assert done.returncode == 0, done.stderr
    manifest = ArchiveReader(Path(archive)).manifest()
    assert manifest.measurement is not None
    assert manifest.measurement.threads == 2
    is_told = "the measured costs are doubtful" in done.stderr
    assert is_told == bool(manifest.measurement.doubts)
    assert is_told or not contradiction_doubts(costs_of(manifest))
