"""What a stream's next timestep costs, from what packaging measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...bucketing.cost import CostModel
from ...bucketing.planner import Planner
from ...config.manifest import parse_manifest
from ...handlers.runtime.loader import measured_cost, planner_from_manifest


@dataclass(frozen=True)
class StepTime:
    """So many sessions' next timestep in one batch, beside whole sequences in one batch."""

    sessions: int
    step_ms: float
    whole_timesteps: int
    whole_ms: float


def step_times(written: Mapping[str, Any]) -> list[StepTime]:
    """For each number of rows of the grid; nothing for an archive that does not stream.

    Milliseconds of the programs' calls as they are planned, from measured ones and the lines between them; the work
    around them is not in it. An engine with fixed shapes computes a step in its smallest bucket.

    Raises:
        ManifestError: this is no manifest.
    """
    if written.get("streaming") is None:
        return []
    manifest = parse_manifest(json.dumps(written))
    planner, heads = planner_from_manifest(manifest), measured_cost(manifest, "head")
    longest = manifest.grid.lengths[-1]
    return [
        StepTime(
            sessions=rows,
            step_ms=_planned_ms(planner, [1] * rows, heads),
            whole_timesteps=longest,
            whole_ms=_planned_ms(planner, [longest] * rows, heads),
        )
        for rows in manifest.grid.batches
    ]


def _planned_ms(planner: Planner, lengths: Sequence[int], heads: CostModel | None) -> float:
    plan = planner.plan(lengths)
    finishing = 0.0 if heads is None else sum(heads.of(run.bucket) for run in plan.heads)
    return plan.milliseconds(planner.cost) + finishing
