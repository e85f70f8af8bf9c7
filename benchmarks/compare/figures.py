"""Compared figures, and the limit of each ratio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Literal

from .interval import Interval, Verdict, median_interval, ratios, verdict
from .process import Kind

SideName = Literal["base", "head"]
SIDES: tuple[SideName, SideName] = ("base", "head")


@dataclass(frozen=True)
class Figure:
    """One measured number of a commit; less is better."""

    name: str
    kind: Kind
    unit: str
    what: str
    """The description for people."""
    floor: float
    """The largest accepted ratio of the head to the base."""


def _hot_path(name: str, what: str) -> Figure:
    return Figure(name, "hot_path", "us", what, 1.03)


FIGURES = (
    _hot_path("ids_json", "token ids as JSON"),
    _hot_path("ids_parsed", "token ids, parsed"),
    _hot_path("ids_json_chunk", "token ids, chunks"),
    _hot_path("frames_npy_to_json", "frames to JSON"),
    _hot_path("frames_npy_to_npy", "frames to .npy"),
    Figure("core_ms", "archive", "core-ms", "archive", 1.05),
)


@dataclass(frozen=True)
class Compared:
    """A figure at both commits, one value for each pair."""

    figure: Figure
    values: Mapping[SideName, Sequence[float]]
    share: float
    """The median share of the core that the measured processes got."""

    @cached_property
    def ratio(self) -> Interval:
        """The ratio of the head to the base: the median of the pairs, with its interval."""
        return median_interval(ratios(self.values["base"], self.values["head"]))

    @property
    def verdict(self) -> Verdict:
        """Verdict on the ratio."""
        return verdict(self.ratio, self.figure.floor)

    def typical(self, side: SideName) -> float:
        """The median of one side's values."""
        return median(self.values[side])


def missed(found: Sequence[Compared]) -> list[str]:
    """A line for each floor that does not hold."""
    return [
        f"missed: {one.figure.what}: {one.ratio.median:.3f} ({one.ratio.low:.3f} to {one.ratio.high:.3f}), "
        f"at most {one.figure.floor:.2f}: {one.verdict}"
        for one in found
        if one.verdict.startswith("slower")
    ]
