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
    """Yield the conditions of the measured costs: threads, padding, and operators that the CPU runs.

    >>> list(cost_lines("onnxruntime", None, padded=False, cpu_operators=["aten::sort"]))
    ['operators on the CPU, not on onnxruntime: aten::sort']
    """
    if measurement is not None:
        yield f"costs were measured with {measurement.threads} thread{'s' * (measurement.threads > 1)}"
    if padded:
        yield f"padded ms: one row has all timesteps and the others have one; {backend} stops each row at its own end"
    if cpu_operators:
        yield f"operators on the CPU, not on {backend}: {', '.join(cpu_operators)}"


def doubt_lines(measurement: CostMeasurement | None, most: int | None = None) -> Iterator[str]:
    """Yield why the measured costs are unreliable, `most` reasons if it is given, and what to do.

    >>> list(doubt_lines(None))
    []
    """
    if measurement is None or not measurement.doubts:
        return
    for doubt in measurement.doubts[:most]:
        yield f"the measured costs are doubtful: {doubt}"
    if left := len(measurement.doubts[most:] if most else ()):
        yield f"{left} more {'reason' if left == 1 else 'reasons'}: `neuron-lstm inspect` shows all"
    yield (
        "batches are planned by these costs until a server measures them again while it loads, or `neuron-lstm "
        "calibrate` does while nothing else runs"
    )


def padding_ms(manifest: Manifest) -> dict[tuple[ProgramRole, Bucket], float]:
    """Return the milliseconds of calls with as much padding as possible, where they were measured."""
    return {(cost.part, cost.bucket): cost.milliseconds for cost in manifest.padding_costs}
