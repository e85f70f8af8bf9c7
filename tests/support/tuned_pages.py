"""Pages of `neuron-lstm tune` for every way in which an engine pads, with names that must be escaped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torchserve_neuron_lstm.archiver_ext.commands.tuning.grid_evaluation import PlannedWork
from torchserve_neuron_lstm.archiver_ext.commands.tuning.page import html_page
from torchserve_neuron_lstm.archiver_ext.commands.tuning.proposal import Proposal, propose
from torchserve_neuron_lstm.archiver_ext.commands.tuning.target import MakePlanner, Target
from torchserve_neuron_lstm.archiver_ext.commands.tuning.time_padding import EnginePadding
from torchserve_neuron_lstm.bucketing.cost import CostModel
from torchserve_neuron_lstm.bucketing.planner import make_planner
from torchserve_neuron_lstm.bucketing.shapes import Bucket, BucketGrid, DynamicShape

HISTOGRAM = {1: 2, 3: 40, 5: 30, 9: 12, 17: 9, 30: 4, 31: 1, 100: 3}
GRID = BucketGrid(batches=(1, 4, 16), lengths=(16, 32, 128))
SUBJECT = 'a</title><script>alert("1")</script>&.mar'
"""A file name that closes the title of a page that does not escape it."""
_COSTS = {bucket: 0.05 + bucket.length * (0.01 + 0.003 * bucket.batch) for bucket in GRID.buckets}


@dataclass(frozen=True)
class TunedPage:
    """A page, and the figures that it must show."""

    proposal: Proposal
    target: Target
    html: str


def _page(target: Target, proposal: Proposal) -> TunedPage:
    return TunedPage(proposal, target, html_page(proposal, target, SUBJECT))


def _target(engine: EnginePadding, make: MakePlanner, costs: dict[Bucket, float]) -> Target:
    return Target(engine, GRID.lengths, GRID.batches, GRID.lengths[-1], costs=costs, make_planner=make)


def bucketed_page() -> TunedPage:
    """An archive with a program for each bucket."""
    return _in_buckets(EnginePadding("inductor<b>", "bucket", "a <note> of the engine"), "sequence")


def chunked_page() -> TunedPage:
    """An archive that runs in chunks of time of the grid's buckets."""
    return _in_buckets(EnginePadding("inductor", "bucket", "it runs in chunks"), "chunk", longest=128)


def _in_buckets(engine: EnginePadding, kind: Literal["sequence", "chunk"], longest: int | None = None) -> TunedPage:
    target = _target(
        engine,
        lambda lengths: make_planner(
            kind, BucketGrid(GRID.batches, tuple(lengths)), CostModel(_COSTS), longest=longest
        ),
        _COSTS,
    )
    return _page(target, propose(HISTOGRAM, target))


def ragged_page() -> TunedPage:
    """A configuration with an engine that stops each row at its own end."""
    corners = {Bucket(rows, steps): 1.0 for rows in (1, 99) for steps in (1, 999)}
    target = _target(
        EnginePadding("native", "none"),
        lambda lengths: make_planner("sequence", DynamicShape(16, 128), CostModel(corners)),
        {},
    )
    return _page(target, propose(HISTOGRAM, target))


def dynamic_page() -> TunedPage:
    """An archive whose engine pads a call to its longest sequence."""
    target = _target(
        EnginePadding("onnxruntime", "call"),
        lambda lengths: make_planner("sequence", DynamicShape(16, 128), CostModel(_COSTS)),
        _COSTS,
    )
    planned = PlannedWork(computed_per_useful=1.25, milliseconds=0.3)
    return _page(target, propose(HISTOGRAM, target, planned))


def bare_page() -> TunedPage:
    """Lengths alone, without a configuration or an archive."""
    return _page(Target(), propose(HISTOGRAM))


PAGES: dict[str, Callable[[], TunedPage]] = {
    "bucketed": bucketed_page,
    "chunked": chunked_page,
    "ragged": ragged_page,
    "dynamic": dynamic_page,
    "bare": bare_page,
}
"""Every kind of page, by name."""
