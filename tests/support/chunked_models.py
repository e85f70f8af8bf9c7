"""Random chunked plans, sensible or not."""

from __future__ import annotations

import random
from collections.abc import Sequence

from torchserve_neuron_lstm.bucketing.plan import Plan, ProgramCall
from torchserve_neuron_lstm.bucketing.shapes import Bucket

Rows = tuple[int, ...]


def any_chunked_plan(lengths: Sequence[int], choose: random.Random, roomy: bool = True) -> Plan:
    """A plan that advances the rows in groups, which may split at any time, in turns.

    With `roomy`, buckets may be larger than their rows and timesteps, as fixed shapes are.
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    calls: list[ProgramCall] = []
    pending = [(tuple(order), 0)]
    while pending:
        rows, start = pending.pop(choose.randrange(len(pending)))
        alive = tuple(row for row in rows if lengths[row] > start)
        if len(alive) > 1 and choose.random() < 0.3:
            pending += [(part, start) for part in _parted(alive, choose)]
        elif alive:
            left = lengths[alive[0]] - start
            steps = choose.randint(1, left)
            bucket = Bucket(len(alive) + roomy * choose.choice((0, 0, 1, 3)), steps)
            calls.append(ProgramCall(bucket, alive, start))
            pending.append((alive, start + steps))
            if roomy and choose.random() < 0.2:  # beyond every end
                calls[-1] = ProgramCall(Bucket(bucket.batch, left + choose.randint(0, 4)), alive, start)
                pending.pop()
    return Plan(tuple(calls), tuple(_heads(tuple(order), choose, roomy)))


def _heads(order: Rows, choose: random.Random, roomy: bool) -> list[ProgramCall]:
    heads = []
    while order:
        count = choose.randint(1, len(order))
        heads.append(ProgramCall(Bucket(count + roomy * choose.choice((0, 0, 2)), 1), order[:count]))
        order = order[count:]
    return heads


def _parted(rows: Rows, choose: random.Random) -> tuple[Rows, Rows]:
    place = choose.randint(1, len(rows) - 1)
    return rows[:place], rows[place:]
