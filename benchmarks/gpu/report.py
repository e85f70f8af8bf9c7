"""Markdown of the comparison on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

OURS = "cuda"
CUDNN = f"{OURS}, cuDNN's kernels"


@dataclass(frozen=True)
class CaseTimes:
    """The contestants of one case."""

    name: str
    milliseconds: Mapping[str, float]
    """From the host and back."""
    on_gpu: Mapping[str, float]
    """Milliseconds of the work alone, of those that have some on a GPU."""
    not_run: Mapping[str, str]
    """Reasons, by contestant."""
    errors: Mapping[str, float]
    """Largest differences of the engine from eager packed, by its precision."""


def heading(machine: str) -> Iterator[str]:
    r"""Yield the lines of a table before the first case.

    >>> print(*heading("NVIDIA X, torch 2.13"), sep="\n")
    NVIDIA X, torch 2.13
    <BLANKLINE>
    | case | contestant | ms, host to host | times as long as cuda | ms on the GPU | times as long as cuda |
    |---|---|---|---|---|---|
    """
    yield machine
    yield ""
    ratio = f"times as long as {OURS}"
    yield f"| case | contestant | ms, host to host | {ratio} | ms on the GPU | {ratio} |"
    yield "|---|---|---|---|---|---|"


def rows(case: CaseTimes) -> Iterator[str]:
    r"""Yield the lines of one case, with ratios to the engine if it was run.

    >>> times, on_gpu = {"cuda": 0.5, "eager packed": 5.0}, {"cuda": 0.25, "eager packed": 4.5}
    >>> case = CaseTimes("B=32", times, on_gpu, {"native": "no compiler"}, {"cuda": 1e-6})
    >>> print(*rows(case), sep="\n")
    | B=32 | cuda (largest error 1.0e-06) | 0.500 | 1.00 | 0.250 | 1.00 |
    | | eager packed | 5.000 | 10.00 | 4.500 | 18.00 |
    | | native | not run: no compiler | | | |
    """
    first = f"{case.name} "
    for name in case.milliseconds:
        error = case.errors.get(name)
        shown = name if error is None else f"{name} (largest error {error:.1e})"
        yield f"| {first}| {shown} |{_compared(name, case.milliseconds)}{_compared(name, case.on_gpu)}"
        first = ""
    for name, reason in case.not_run.items():
        yield f"| {first}| {name} | not run: {reason} | | | |"
        first = ""


def _compared(name: str, milliseconds: Mapping[str, float]) -> str:
    """Two cells: the time, and its ratio to the engine's."""
    if name not in milliseconds:
        return " | |"
    ms, ours = milliseconds[name], milliseconds.get(OURS)
    return f" {ms:.3f} | {'' if ours is None else f'{ms / ours:.2f} '}|"
