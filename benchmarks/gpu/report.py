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
    max_error: float
    """Largest difference of the engine from eager packed."""


def table(cases: list[CaseTimes], machine: str) -> Iterator[str]:
    r"""Yield the lines of a table, with ratios to the engine.

    >>> case = CaseTimes("B=32", {"cuda": 0.5, "eager packed": 5.0}, {"native": "no compiler"}, 1e-6)
    >>> print(*table([case], "NVIDIA X, torch 2.13"), sep="\n")
    NVIDIA X, torch 2.13
    <BLANKLINE>
    | case | contestant | ms, host to host | times as long as cuda |
    |---|---|---|---|
    | B=32 | cuda (largest error 1.0e-06) | 0.500 | 1.00 |
    | | eager packed | 5.000 | 10.00 |
    | | native | not run: no compiler | |
    """
    yield machine
    yield ""
    yield f"| case | contestant | ms, host to host | times as long as {OURS} |"
    yield "|---|---|---|---|"
    for case in cases:
        first = case.name
        for name, ms in case.milliseconds.items():
            shown = f"{name} (largest error {case.max_error:.1e})" if name == OURS else name
            yield f"| {first}{' ' if first else ''}| {shown} | {ms:.3f} | {ms / case.milliseconds[OURS]:.2f} |"
            first = ""
        for name, reason in case.not_run.items():
            yield f"| | {name} | not run: {reason} | |"
