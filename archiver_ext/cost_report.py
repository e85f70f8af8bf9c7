"""Lines of reports on how costs were measured, the same in each report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..bucketing.shapes import Bucket, ProgramRole
    from ..config.manifest import CostMeasurement, Manifest


def cost_lines(
    backend: str, measurement: CostMeasurement | None, padded: bool, cpu_operators: Sequence[str]
) -> Iterator[str]:
    """Yield the conditions of the measured costs: threads, spread, padding, and operators that the CPU runs.

    >>> list(cost_lines("onnxruntime", None, padded=False, cpu_operators=["aten::sort"]))
    ['operators on the CPU, not on onnxruntime: aten::sort']
    """
    if measurement is not None:
        threads = f"{measurement.threads} thread{'s' * (measurement.threads > 1)}"
        spread = f"{measurement.spread - 1:.0%}"
        yield f"costs were measured with {threads}; most calls took {spread} longer than the shortest or less"
    if padded:
        yield f"padded ms: one row has all timesteps and the others have one; {backend} stops each row at its own end"
    if cpu_operators:
        yield f"operators on the CPU, not on {backend}: {', '.join(cpu_operators)}"


def busy_line(measurement: CostMeasurement | None) -> Iterator[str]:
    """Yield what to do if the costs were measured while other work ran.

    >>> list(busy_line(None))
    []
    """
    if measurement is not None and measurement.was_busy:
        yield "costs were measured on a busy machine: run neuron-lstm calibrate"


def padding_ms(manifest: Manifest) -> dict[tuple[ProgramRole, Bucket], float]:
    """Return the milliseconds of calls with as much padding as possible, where they were measured."""
    return {(cost.part, cost.bucket): cost.milliseconds for cost in manifest.padding_costs}
