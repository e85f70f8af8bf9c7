"""Row groups: parts of a plan that no call joins, so that each is executed with buffers of its own."""

from __future__ import annotations

from .plan import Plan, ProgramCall


def row_groups(plan: Plan) -> list[Plan]:
    """Split a plan where no call crosses, into groups of about as many rows as the plan's largest call has.

    >>> from torchserve_neuron_lstm.bucketing.shapes import Bucket
    >>> long, short = ProgramCall(Bucket(2, 9), (2, 0)), ProgramCall(Bucket(2, 3), (1, 3))
    >>> heads = ProgramCall(Bucket(2, 1), (2, 0)), ProgramCall(Bucket(2, 1), (1, 3))
    >>> [len(group.calls) for group in row_groups(Plan((long, short), heads))]
    [1, 1]
    """
    if len(plan.heads) == 1:  # as in most batches
        return [plan]
    most = max(call.bucket.batch for call in (*plan.calls, *plan.heads))
    index = {row: place for place, row in enumerate(plan.rows)}
    beyond = list(range(len(plan.rows)))  # for the first row of a call, the row after its last one
    for call in plan.calls:
        first = index[call.rows[0]]
        beyond[first] = max(beyond[first], first + len(call.rows))
    heads: list[list[ProgramCall]] = [[]]
    group_of: list[int] = []  # by place
    crossed = 0  # no call of the rows so far crosses this place
    for head in plan.heads:
        place = len(group_of)
        rows = sum(len(one.rows) for one in heads[-1])
        if place >= crossed and rows and rows + len(head.rows) > most:
            heads.append([])
        heads[-1].append(head)
        group_of += [len(heads) - 1] * len(head.rows)
        crossed = max(crossed, *beyond[place : place + len(head.rows)])
    calls: list[list[ProgramCall]] = [[] for _ in heads]
    for call in plan.calls:
        calls[group_of[index[call.rows[0]]]].append(call)
    return [Plan(tuple(own), tuple(own_heads)) for own, own_heads in zip(calls, heads)]
