"""Markdown of the comparison on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

OURS = "cuda"


@dataclass(frozen=True)
class CaseTimes:
    """The contestants of one case."""

    name: str
    milliseconds: Mapping[str, float]
    not_run: Mapping[str, str]
    """Reasons, by contestant."""
    errors: Mapping[str, float]
    """Largest differences of the engine from eager packed, by its precision."""


def heading(machine: str) -> Iterator[str]:
    r"""Yield the lines of a table before the first case.

    >>> print(*heading("NVIDIA X, torch 2.13"), sep="\n")
    NVIDIA X, torch 2.13
    <BLANKLINE>
    | case | contestant | ms, host to host | times as long as cuda |
    |---|---|---|---|
    """
    yield machine
    yield ""
    yield f"| case | contestant | ms, host to host | times as long as {OURS} |"
    yield "|---|---|---|---|"


def rows(case: CaseTimes) -> Iterator[str]:
    r"""Yield the lines of one case, with ratios to the engine if it was run.

    >>> case = CaseTimes("B=32", {"cuda": 0.5, "eager packed": 5.0}, {"native": "no compiler"}, {"cuda": 1e-6})
    >>> print(*rows(case), sep="\n")
    | B=32 | cuda (largest error 1.0e-06) | 0.500 | 1.00 |
    | | eager packed | 5.000 | 10.00 |
    | | native | not run: no compiler | |
    """
    first, ours = f"{case.name} ", case.milliseconds.get(OURS)
    for name, ms in case.milliseconds.items():
        error = case.errors.get(name)
        shown = name if error is None else f"{name} (largest error {error:.1e})"
        yield f"| {first}| {shown} | {ms:.3f} | {'' if ours is None else f'{ms / ours:.2f} '}|"
        first = ""
    for name, reason in case.not_run.items():
        yield f"| {first}| {name} | not run: {reason} | |"
        first = ""
