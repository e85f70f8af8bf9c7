"""Unreliable costs, measured again by the host that loads the archive."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from archiving import archived, write_source
from busy_machine import BusyMachine
from served_models import SCORER, TAGGER, TAGGING
from tiny_archive import GRID, make_archive

from torchserve_neuron_lstm.backends.interface import Backend
from torchserve_neuron_lstm.bucketing.batch_planner import BucketPlanner
from torchserve_neuron_lstm.bucketing.shapes import Bucket
from torchserve_neuron_lstm.config.manifest import CostMeasurement, MeasuredCost, read_manifest
from torchserve_neuron_lstm.config.manifest_writer import write_manifest
from torchserve_neuron_lstm.handlers.formats.request import ModelIdentity
from torchserve_neuron_lstm.handlers.host import Host
from torchserve_neuron_lstm.handlers.open_service import open_service
from torchserve_neuron_lstm.handlers.runtime import loader
from torchserve_neuron_lstm.handlers.runtime.cost_samples import CostKey, Slice
from torchserve_neuron_lstm.handlers.runtime.doubtful_costs import (
    EFFORT,
    corners,
    corners_first,
    costs_of,
    doubts_of,
    reliable_costs,
    with_reliable_costs,
)
from torchserve_neuron_lstm.handlers.runtime.loader import LoadedArchive
from torchserve_neuron_lstm.handlers.runtime.measurement import METERS, Effort, Meters
from torchserve_neuron_lstm.handlers.service import Service
from torchserve_neuron_lstm.inference.open_archive import open_archive

ABSURD_MS = 1e9
ABSURD = tuple(MeasuredCost("sequence", bucket, ABSURD_MS) for bucket in GRID.buckets)
CONTRADICTING = tuple(MeasuredCost("sequence", bucket, 1e6 / bucket.batch) for bucket in GRID.buckets)
BUSY = CostMeasurement(1, ("the machine was busy",))
QUIET = CostMeasurement(1)


def never() -> float:
    """A meter that must not be read."""
    raise AssertionError("nothing may be measured")


UNREAD = Meters(never, never)


def serve(archive: Path, **facts: Any) -> Service:
    """Serve an archive with some values of its manifest changed, as every server does."""
    write_manifest(replace(read_manifest(archive), **facts), archive)
    model = ModelIdentity("sums", "1.0")
    host = Host(archive, model, 6_553_500, 120_000.0, lambda *_: None, dict(os.environ), threads=1)
    return open_service(host)


def planned_by(service: Service) -> LoadedArchive:
    """The archive as it is served."""
    assert isinstance(service.model, LoadedArchive)
    return service.model


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """The log from information on."""
    with caplog.at_level(logging.INFO):
        yield caplog


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        pytest.param({"costs": ABSURD, "measurement": BUSY}, "the machine was busy", id="marked"),
        pytest.param(
            {"costs": CONTRADICTING, "measurement": QUIET}, "sequence 1 x 4 took 1000000.000 ms", id="contradicting"
        ),
        pytest.param({"costs": CONTRADICTING}, "sequence 1 x 4 took 1000000.000 ms", id="contradicting, and old"),
    ],
)
def test_doubtful_costs_are_measured_by_the_host(
    archive: Path, told: pytest.LogCaptureFixture, facts: dict[str, object], reason: str
) -> None:
    """Batches are planned by them, the description shows them, and one line of the log says so."""
    service = serve(archive, **facts)
    served = planned_by(service)

    assert all(0 < served.cost.of(bucket) < 1000 for bucket in GRID.buckets)
    assert {cost.bucket for cost in served.manifest.costs} == set(GRID.buckets)
    assert served.manifest.measurement is not None
    assert served.manifest.measurement.threads == 1
    shown = service.description["costs"]
    assert isinstance(shown, list)
    assert max(cost["milliseconds"] for cost in shown) < 1000
    lines = [record.getMessage() for record in told.records if "costs of this archive" in record.getMessage()]
    assert len(lines) == 1
    assert f"are doubtful ({reason}" in lines[0]
    assert "4 of 4 were measured here" in lines[0]


@pytest.mark.parametrize("measurement", [None, QUIET])
def test_costs_without_a_doubt_are_kept(
    archive: Path, told: pytest.LogCaptureFixture, measurement: CostMeasurement | None
) -> None:
    """Nothing is measured for them, however absurd they are, and nothing is logged."""
    served = planned_by(serve(archive, costs=ABSURD, measurement=measurement))

    assert served.cost.of(Bucket(4, 8)) == ABSURD_MS
    assert with_reliable_costs(served, meters=UNREAD) is served
    assert "costs" not in told.text


def test_estimates_of_an_emulated_device_are_kept(pristine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of an emulation say nothing about the device."""
    loaded = loader.load_archive(pristine, threads=1)
    marked = replace(loaded, manifest=replace(loaded.manifest, measurement=BUSY))
    monkeypatch.setattr(Backend, "simulation", lambda _: "emulated")

    assert with_reliable_costs(marked, meters=UNREAD) is marked


def test_programs_that_take_too_long_keep_their_costs(pristine: Path, told: pytest.LogCaptureFixture) -> None:
    """The measurement ends in time, and the log says what to do."""
    loaded = loader.load_archive(pristine, threads=1)
    marked = replace(loaded, manifest=replace(loaded.manifest, measurement=BUSY))
    readings = iter(range(1000))

    assert with_reliable_costs(marked, meters=Meters(lambda: float(next(readings)), lambda: 0.0)) is marked
    assert next(readings) < 20
    assert "take too long" in told.text
    assert "neuron-lstm calibrate" in told.text


def test_costs_that_are_still_doubtful_are_never_larger(pristine: Path, told: pytest.LogCaptureFixture) -> None:
    """A host that is busy while it loads plans by the smaller ones of its own costs and the archive's."""
    loaded = loader.load_archive(pristine, threads=1)
    marked = replace(loaded, manifest=replace(loaded.manifest, measurement=BUSY))
    waited = iter(range(10**6))  # a second for each slice

    served = with_reliable_costs(marked, meters=METERS._replace(waited_ms=lambda: 1000.0 * next(waited)))

    assert all(served.cost.of(bucket) <= 0.5 for bucket in GRID.buckets)
    assert served.manifest.measurement is not None
    assert served.manifest.measurement.doubts
    assert "they are still doubtful: run `neuron-lstm calibrate`" in told.text


def test_the_line_of_the_log_is_short(pristine: Path, told: pytest.LogCaptureFixture) -> None:
    """It has one statement of the doubt; `neuron-lstm inspect` has the figures and the causes."""
    loaded = loader.load_archive(pristine, threads=1)
    busy = CostMeasurement(
        1, ("24 of 24 costs were measured while threads waited for cores (179% of x): " + 9 * "why ",)
    )
    waited = iter(range(10**6))

    with_reliable_costs(
        replace(loaded, manifest=replace(loaded.manifest, measurement=busy)),
        meters=METERS._replace(waited_ms=lambda: 1000.0 * next(waited)),
    )

    (message,) = (record.getMessage() for record in told.records)
    assert "(24 of 24 costs were measured while threads waited for cores): 4 of 4 were measured here" in message
    assert len(message) <= 300


def test_the_smaller_cost_is_taken_only_while_the_measurement_is_doubtful() -> None:
    """A host that is slower than the packaging machine plans by its own costs."""
    key = CostKey("sequence", Bucket(1, 4))
    taken = {key: [Slice(2.0, 4.0, 0.0)]}

    assert reliable_costs({key: 1.0}, taken, ()) == {key: 2.0}
    assert reliable_costs({key: 1.0}, taken, ("busy",)) == {key: 1.0}


CHUNKS = """
inputs: {frames: {dtype: float32, shape: [batch, time, 3]}}
lengths: lengths
buckets: {batch: [2], length: [4], longest: 16}
backend: native
"""


@pytest.mark.parametrize(("file", "block"), [(TAGGER, TAGGING), (SCORER, CHUNKS)], ids=["sequence", "chunks"])
def test_real_archives_are_measured_whole(file: Path, block: str, tmp_path: Path) -> None:
    """Programs over whole sequences and over chunks, and padding have new costs."""
    archived(write_source(tmp_path / "source", file, block), "real", tmp_path)
    with open_archive(tmp_path / "real.mar", threads=1) as model:
        manifest = model.loaded.manifest
        absurd = replace(
            manifest,
            costs=tuple(replace(cost, milliseconds=ABSURD_MS) for cost in manifest.costs),
            padding_costs=tuple(replace(cost, milliseconds=ABSURD_MS) for cost in manifest.padding_costs),
            measurement=BUSY,
        )
        served = with_reliable_costs(replace(model.loaded, manifest=absurd), replace(EFFORT, limit_ms=20_000.0))

    assert costs_of(served.manifest).keys() == costs_of(manifest).keys()
    assert max(costs_of(served.manifest).values()) < 1000
    assert served.plan([2, 2]).milliseconds(served.cost) < 1000


def test_a_selector_goes_on_to_choose_the_buckets(tmp_path: Path) -> None:
    """The lengths that the user's function has selected are those of the new planner."""
    archive = make_archive(tmp_path / "archive", measurement=BUSY)
    loaded = loader.load_archive(archive, threads=1, select=lambda manifest, directory: (8,) * 8)

    planner = with_reliable_costs(loaded).planner

    assert isinstance(planner, BucketPlanner)
    assert planner.selected == (8,) * 8
    assert planner.plan([1]).calls[0].bucket.length == 8


def test_the_corners_are_measured_first() -> None:
    """All other costs lie between them, wherever the time ends."""
    keys = [CostKey("chunk", Bucket(rows, length)) for rows in (1, 2, 4) for length in (8, 16, 32)]
    heads = [CostKey("head", Bucket(rows, 1)) for rows in (1, 2, 4)]

    ordered = corners_first([*keys, *heads])

    assert set(ordered) == {*keys, *heads}
    assert set(ordered[:6]) == set(corners([*keys, *heads]))
    assert {key.bucket for key in ordered[:6]} == {(1, 8), (1, 32), (4, 8), (4, 32), (1, 1), (4, 1)}


def test_time_that_ends_early_leaves_the_corners(pristine: Path) -> None:
    """The other costs are interpolated between them."""
    costs = tuple(MeasuredCost("sequence", Bucket(rows, length), 7.0) for rows in (1, 2, 4) for length in (4, 6, 8))
    loaded = loader.load_archive(pristine, threads=1)
    marked = replace(loaded, manifest=replace(loaded.manifest, costs=costs, measurement=BUSY))
    machine = BusyMachine()

    def clock() -> float:
        machine.now += 0.01
        return machine.now

    served = with_reliable_costs(marked, Effort(limit_ms=190), Meters(clock, lambda: 0.0))

    assert {cost.bucket for cost in served.manifest.costs} >= set(GRID.buckets)
    assert len(served.manifest.costs) < len(costs)
    assert served.cost.of(Bucket(2, 6)) > 0


def test_the_mark_is_told_before_contradictions(pristine: Path) -> None:
    """Both are doubts; packaging has told the contradictions too."""
    manifest = replace(read_manifest(pristine), costs=CONTRADICTING)

    assert doubts_of(replace(manifest, measurement=BUSY)) == BUSY.doubts
    assert doubts_of(manifest)[0].startswith("sequence 1 x 4 took")
    assert doubts_of(replace(manifest, costs=ABSURD)) == ()
