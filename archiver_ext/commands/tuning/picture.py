"""Picture of a proposal: the observed lengths, with the padding that each grid computes for them."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ....bucketing.bucket_lengths import Histogram, clip_histogram
from ...errors import refusing
from .proposal import Proposal, counted, padding_percent, result, summary
from .target import Target

_MOST_BARS = 60  # between the lengths of a grid: more are too narrow to see
_Numbers: TypeAlias = NDArray[np.float64]


def bars(histogram: Histogram, lengths: Sequence[int]) -> tuple[_Numbers, _Numbers, _Numbers]:
    """Return the edges of bars over the lengths, and the heights of real timesteps and of padding.

    The areas over the logarithm of the length are timesteps. A bar ends at each of `lengths`, which are ascending. No
    sequence is longer than the last of them.

    >>> edges, real, padding = bars({3: 50, 5: 20}, lengths=(4, 5))
    >>> edges
    array([2.5, 3.5, 4.5, 5.5])
    >>> (real * np.diff(np.log(edges))).round(), (padding * np.diff(np.log(edges))).round()
    (array([150.,   0., 100.]), array([50.,  0.,  0.]))
    """
    observed, numbers = np.array(sorted(histogram.items()), dtype=np.float64).T
    spaced = np.geomspace(observed[0], lengths[-1], _MOST_BARS).round()
    edges = np.unique(np.array([observed[0] - 1, *spaced, *lengths])) + 0.5
    padded = np.array(lengths)[np.searchsorted(lengths, observed)] - observed
    widths = np.diff(np.log(edges))
    real, padding = (np.histogram(observed, edges, weights=numbers * each)[0] / widths for each in (observed, padded))
    return edges, real, padding


def draw(proposal: Proposal, target: Target, suffix: str) -> bytes:
    """Draw a panel for each grid, all over one axis of lengths, and return the file of this suffix.

    Raises `PackagingError`: matplotlib is not installed.
    """
    needed = "a picture needs the package matplotlib: pip install 'torchserve-neuron-lstm[picture]'"
    with refusing(ImportError, f"{needed} (", ")"):
        from matplotlib.figure import Figure
        from matplotlib.ticker import LogLocator
    grids = proposal.distinct_grids
    figure = Figure((10, 1 + 3 * len(grids)), dpi=144, layout="constrained")
    figure.suptitle("\n".join(filter(None, (summary(proposal), result(proposal)))))
    above = ("data", "axes fraction")
    panels = figure.subplots(len(grids), sharex=True, sharey=True, squeeze=False)[:, 0]
    for panel, grid in zip(panels, grids, strict=True):
        served = clip_histogram(proposal.histogram, grid.longest, truncate=target.truncate)
        edges, real, padding = bars(served, (*grid.lengths, grid.longest))
        panel.stairs(real, edges, fill=True, label="real timesteps")
        if proposal.padding == "bucket":
            panel.stairs(real + padding, edges, baseline=real, fill=True, hatch="///", label="padding")
        for length in grid.lengths:
            panel.axvline(length + 0.5, color="black", linewidth=0.7)
            panel.annotate(str(length), (length + 0.5, 1.02), xycoords=above, rotation=90, ha="center")
        title = f"{grid.name.capitalize()}: {counted(len(grid.lengths), 'length')}"
        panel.set_title(f"{title}, padding {padding_percent(grid.ratio)}", loc="left", pad=30)
        panel.set_yticks([])
    panels[0].legend()
    panels[-1].set_xscale("log")
    panels[-1].xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panels[-1].xaxis.set_major_formatter("{x:g}")
    panels[-1].minorticks_off()
    panels[-1].set_xlabel("timesteps of a sequence (logarithmic); the areas of the bars are timesteps")
    written = BytesIO()
    figure.savefig(written, format=suffix.removeprefix("."))
    return written.getvalue()
