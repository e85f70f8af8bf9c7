"""Pages of `neuron-lstm tune` for every way in which an engine pads, with names that must be escaped."""

from collections.abc import Callable
from dataclasses import dataclass

from torchserve_neuron_lstm.archiver_ext.commands.tuning.page import html_page
from torchserve_neuron_lstm.archiver_ext.commands.tuning.proposal import Proposal, propose
from torchserve_neuron_lstm.archiver_ext.commands.tuning.target import EnginePadding, Target
from torchserve_neuron_lstm.bucketing.shapes import Bucket, BucketGrid

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


def _target(engine: EnginePadding, costs: dict[Bucket, float]) -> Target:
    return Target(engine, GRID.lengths, GRID.batches, GRID.lengths[-1], costs=costs)


def bucketed_page() -> TunedPage:
    """An archive with a program for each bucket."""
    target = _target(EnginePadding("inductor<b>", "bucket", "a <note> of the engine"), _COSTS)
    return _page(target, propose(HISTOGRAM, target))


def ragged_page() -> TunedPage:
    """A configuration with an engine that stops each row at its own end."""
    target = _target(EnginePadding("native", "none"), {})
    return _page(target, propose(HISTOGRAM, target))


def dynamic_page() -> TunedPage:
    """An archive whose engine pads a call to its longest sequence."""
    target = _target(EnginePadding("onnxruntime", "call"), _COSTS)
    return _page(target, propose(HISTOGRAM, target))


PAGES: dict[str, Callable[[], TunedPage]] = {
    "bucketed": bucketed_page,
    "ragged": ragged_page,
    "dynamic": dynamic_page,
    "bare": lambda: _page(Target(), propose(HISTOGRAM)),  # without a configuration or an archive
}
"""Every kind of page, by name."""
