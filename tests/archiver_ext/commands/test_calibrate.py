"""`neuron-lstm calibrate`: it writes this host's milliseconds into an archive, and changes only those."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_archive import GRID, make_archive

from torchserve_neuron_lstm.archiver_ext import cli
from torchserve_neuron_lstm.bucketing.shapes import Bucket
from torchserve_neuron_lstm.config.manifest import Manifest, MeasuredCost, read_manifest

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
