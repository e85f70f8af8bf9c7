"""Division of a recurrent layer among the blocks of a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

WIDEST = 256
"""Most hidden units: the weights of 32 units fill the registers of a block, and 8 are a cluster."""
SLICES = 16
"""Lanes of a unit, as in `recurrence.cu`."""

_CLUSTERS = (1, 2, 4, 8)
_FEWEST_UNITS = 8
"""Units of a block of a small layer: a smaller block would not be faster."""
_MOST_UNITS = 32
_ROWS = (1, 2, 4, 8)
_MOST_AT_ONCE = 4


@dataclass(frozen=True)
class Geometry:
    """Sizes with which the kernel is compiled."""

    units: int
    """Hidden units of a block."""
    cluster: int
    """Blocks that compute the same rows."""
    rows: int
    """Rows of a cluster."""

    @property
    def rows_at_once(self) -> int:
        """Rows whose sums a lane holds at once."""
        return min(self.rows, _MOST_AT_ONCE)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.units * SLICES


ChooseGeometry = Callable[[int, int, int, int], Geometry]
"""A function with the signature of `geometry`."""


def geometry(hidden: int, batch: int, directions: int, multiprocessors: int) -> Geometry:
    """Choose the fewest rows of a cluster with which all clusters of a batch run at once, or else 8.

    A cluster that computes one row more takes longer for each step. Clusters beyond those that run at once wait. How
    many run at once is counted by multiprocessors: those that make no whole cluster in their part of the GPU are not
    known.

    >>> geometry(hidden=256, batch=32, directions=1, multiprocessors=132)
    Geometry(units=32, cluster=8, rows=2)
    >>> geometry(hidden=100, batch=1, directions=2, multiprocessors=132)
    Geometry(units=14, cluster=8, rows=1)
    """
    units = max(_FEWEST_UNITS, _even(-(-hidden // _CLUSTERS[-1])))
    cluster = next(size for size in _CLUSTERS if size * units >= hidden)
    at_once = multiprocessors * (_MOST_UNITS // units) // cluster
    rows = next((rows for rows in _ROWS if -(-batch // rows) * directions <= at_once), _ROWS[-1])
    return Geometry(units, cluster, rows)


def _even(number: int) -> int:
    """The next even number: two units are a warp."""
    return number + number % 2
