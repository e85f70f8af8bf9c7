import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fake_model import GRID
from printed import Capture, printed
from tiny_archive import make_archive

from torchserve_neuron_lstm.archiver_ext import cli
from torchserve_neuron_lstm.archiver_ext.evaluation import measured_costs
from torchserve_neuron_lstm.bucketing.shapes import Bucket
from torchserve_neuron_lstm.config.manifest import CostMeasurement, Manifest, MeasuredCost, read_manifest
from torchserve_neuron_lstm.handlers.runtime.measurement import CostKey

ABSURD_MS = 1e9
COSTS = tuple(MeasuredCost("sequence", bucket, ABSURD_MS) for bucket in GRID.buckets)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An archive for every shape, with measurements that are impossible on any host."""
    return make_archive(tmp_path / "archive", shapes="any", costs=COSTS)


def calibrated(archive: Path, *words: object) -> Manifest:
    assert cli.main(["calibrate", str(archive), "--threads", "1", *map(str, words)]) == 0
    return read_manifest(archive)


def buckets(costs: tuple[MeasuredCost, ...]) -> set[Bucket]:
    assert {cost.part for cost in costs} == {"sequence"}
    assert all(0 < cost.milliseconds < ABSURD_MS for cost in costs)
    return {cost.bucket for cost in costs}


def test_full_calls_are_measured_again_and_nothing_else_changes(archive: Path) -> None:
    before = read_manifest(archive)

    after = calibrated(archive)

    assert buckets(after.costs) >= set(GRID.buckets)
    assert replace(after, costs=before.costs, measurement=None) == before
    assert after.padding_costs == ()


@pytest.mark.ci
def test_what_padding_costs_is_measured_again_where_it_was_known(tmp_path: Path) -> None:
    """The shapes are those of the full calls, because plans use both."""
    ragged = make_archive(tmp_path / "ragged", shapes="any", costs=COSTS, padding_costs=COSTS[:1])
    before = read_manifest(ragged)

    after = calibrated(ragged)

    assert buckets(after.padding_costs) == buckets(after.costs) >= set(GRID.buckets)
    assert replace(after, costs=before.costs, padding_costs=before.padding_costs, measurement=None) == before


def test_another_archive_is_written_and_machines_are_told_both(archive: Path, tmp_path: Path, capsys: Capture) -> None:
    before = read_manifest(archive)

    assert calibrated(archive, "-o", tmp_path / "other", "--json") == before

    told = json.loads(capsys.readouterr().out)
    measured = read_manifest(tmp_path / "other").costs
    assert [cost["milliseconds"] for cost in told["costs"]] == [cost.milliseconds for cost in measured]
    assert {cost["before"] for cost in told["costs"]} == {ABSURD_MS, None}
    assert 0 < told["ratio"] < 1


def measuring(*turns: float) -> Callable[..., dict[CostKey, tuple[float, ...]]]:
    return lambda calls, **_: dict.fromkeys(calls, turns)


def test_costs_of_a_busy_machine_are_told_until_they_are_measured_again(
    archive: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(measured_costs, "measure", measuring(4.0, 8.0, 9.0))

    assert calibrated(archive, "--json").measurement == CostMeasurement(1, 2.0)
    shown = capsys.readouterr()
    assert json.loads(shown.out)["spread"] == 2.0
    assert "costs were measured on a busy machine: run neuron-lstm calibrate" in shown.err

    monkeypatch.setattr(measured_costs, "measure", measuring(4.0, 4.0, 4.2))
    assert calibrated(archive).measurement == CostMeasurement(1)
    assert "busy" not in capsys.readouterr().err


def test_no_bucket_costs_more_than_a_larger_one(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other work only makes calls longer, so the cost of the larger one is a bound."""
    monkeypatch.setattr(
        measured_costs,
        "measure",
        lambda calls, **_: {key: (8.0 / key.bucket.batch / key.bucket.length,) for key in calls},
    )

    costs = calibrated(archive).costs

    assert {cost.milliseconds for cost in costs} == {8.0 / GRID.batches[-1] / GRID.lengths[-1]}


@pytest.mark.ci
def test_people_see_padding_threads_and_operators_on_the_cpu(
    native_archive: Path, divided_archive: Path, tmp_path: Path, capsys: Capture
) -> None:
    padded = shutil.copy(native_archive, tmp_path)
    divided = shutil.copy(divided_archive, tmp_path)

    assert "costs were measured with 1 thread; " in printed(capsys, "calibrate", padded, "--threads", "1")
    told = json.loads(printed(capsys, "calibrate", divided, "--threads", "1", "--json"))
    assert told["on_cpu"] == ["aten::linear"]
    assert told["threads"] == 1
    assert {cost["padding_milliseconds"] for cost in told["costs"]} == {None}
