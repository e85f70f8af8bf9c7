import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from torchserve_neuron_lstm.archiver_ext.commands.tuning.lengths_drawing import Panel, make_panels, make_ticks
from torchserve_neuron_lstm.archiver_ext.commands.tuning.proposal import propose
from torchserve_neuron_lstm.archiver_ext.commands.tuning.target import EnginePadding, Target, TimePadding

AWKWARD: tuple[dict[int, int], ...] = (
    {1: 1},
    {7: 10**12},
    {1: 1, 999_999_999: 1},
    {1000: 1, 1001: 5, 1003: 1},
    dict.fromkeys(range(1, 400), 1),
)
histograms = st.sampled_from(AWKWARD) | st.dictionaries(
    st.integers(1, 300) | st.integers(1, 10**6), st.integers(1, 1000), min_size=1, max_size=30
)
grids = st.just(()) | st.sets(st.integers(1, 400), min_size=1, max_size=20).map(lambda sizes: tuple(sorted(sizes)))


def area(panel: Panel, kind: str) -> float:
    return math.fsum(getattr(bar, kind) * (bar.right - bar.left) for bar in panel.bars)


@given(histograms, grids)
@example({9: 1}, (4,))  # the current lengths fit no sequence
def test_areas_are_what_was_counted(histogram: dict[int, int], current: tuple[int, ...]) -> None:
    proposal = propose(histogram, Target(lengths=current))
    grids = make_panels(proposal)

    scale = area(grids[-1], "useful") / proposal.proposed.useful
    for grid, panel in zip(proposal.grids, grids, strict=True):
        assert grid.computed is not None
        assert area(panel, "useful") == pytest.approx(scale * grid.useful)
        assert area(panel, "padded") == pytest.approx(scale * (grid.computed - grid.useful), abs=1e-12)
        assert sum(bar.sequences for bar in panel.bars) == proposal.sequences - grid.refused


@given(histograms, grids)
@example({9: 1}, (4,))
def test_everything_lies_within_the_frame(histogram: dict[int, int], current: tuple[int, ...]) -> None:
    proposal = propose(histogram, Target(lengths=current))
    ticks = make_ticks(proposal)

    for panel in make_panels(proposal):
        places = [place for bar in panel.bars for place in (bar.left, bar.right)]
        assert places == sorted(places)
        assert all(-1e-9 <= place <= 1 + 1e-9 for place in places)
        assert all(0 <= bar.useful + bar.padded <= 1 + 1e-9 for bar in panel.bars)
        assert len(panel.bars) <= 80 + len(panel.edges)
        assert all(0 < edge.at <= 1 + 1e-9 for edge in panel.edges)
        assert panel.edges[-1].label
    assert len(ticks) <= 30
    assert all(-1e-9 <= tick.at <= 1 + 1e-9 and tick.label for tick in ticks)
    for grid, panel in zip(proposal.grids, make_panels(proposal), strict=True):
        for bar in panel.bars:  # a new one begins at each edge, so that the step is visible
            assert not any(bar.first <= edge < bar.last for edge in grid.lengths)


@given(histograms, grids.filter(bool), st.sampled_from(["none", "call"]))
def test_lengths_that_are_limits_only_have_no_padding(
    histogram: dict[int, int], current: tuple[int, ...], padding: TimePadding
) -> None:
    proposal = propose(histogram, Target(EnginePadding(None, padding), current))
    panels = make_panels(proposal)

    assert all(area(panel, "padded") == 0 for panel in panels)
    assert len(panels) == (1 if proposal.proposed.lengths == current else 2)
