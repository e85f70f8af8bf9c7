"""The moments at which disturbances are due."""

from __future__ import annotations

from collections import Counter

from chaos.cluster.kinds import Kind, due, enough
from hypothesis import given
from hypothesis import strategies as st

WANTED = {Kind.REPLICA: 10, Kind.NODE: 2, Kind.PRIMARY: 1}


@given(st.fixed_dictionaries({kind: st.integers(0, 5) for kind in Kind}), st.integers(30, 60))
def test_a_run_has_as_many_disturbances_as_wanted(wanted: dict[Kind, int], steps: int) -> None:
    """Nodes and primaries exactly, and replicas the rest of the time."""
    made: Counter[Kind] = Counter()
    for step in range(steps):
        made[due(made, wanted, step / steps)] += 1

    assert enough(made, wanted)
    assert all(made[kind] == wanted[kind] for kind in (Kind.NODE, Kind.PRIMARY))
    assert made.total() == steps


def test_nodes_and_the_primary_go_within_the_run() -> None:
    """Replicas are killed before, between and after."""
    made: Counter[Kind] = Counter()
    order = []
    for step in range(100):
        order.append(due(made, WANTED, step / 100))
        made[order[-1]] += 1

    assert [step for step, kind in enumerate(order) if kind is Kind.NODE] == [25, 75]
    assert order.index(Kind.PRIMARY) == 50


def test_too_few_of_one_kind_are_not_enough() -> None:
    """Whatever there is of the others."""
    assert enough(Counter(WANTED), WANTED)
    for kind in Kind:
        assert not enough(Counter(WANTED) + Counter([*Kind]) - Counter({kind: 2}), WANTED)
