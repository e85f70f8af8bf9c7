"""Measurement of both commits in pairs.

Each pair has fresh processes, which take short turns, one after the other, on the same core.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from .figures import SIDES, Compared, Figure, SideName
from .process import Child, ChildFailed, Kind
from .same_work import refuse_other_work
from .sides import Side

TURNS = 12
"""Slices of each side for each figure in a pair. The best one counts."""

Subjects = Mapping[SideName, Path]
"""Subject of each child: a checkout, or an archive."""

Order = tuple[SideName, SideName]
_ORDERS: tuple[Order, Order] = (("base", "head"), ("head", "base"))


def race(
    sides: Mapping[SideName, Side],
    subjects: Mapping[Kind, Subjects],
    figures: Sequence[Figure],
    pairs: int,
    progress: Callable[[], None],
) -> list[Compared]:
    """Measure the figures at both sides in `pairs` pairs; `progress` is called after each.

    Raises:
        ChildFailed: a process ended, or runs code of another side.
        OtherWork: the two sides answer differently.
    """
    values: dict[str, dict[SideName, list[float]]] = {figure.name: {side: [] for side in SIDES} for figure in figures}
    shares: dict[str, list[float]] = {figure.name: [] for figure in figures}
    cores = usable_cores()
    for number, order in enumerate(orders(pairs, random.Random(0))):
        first, second = cores[number % len(cores)], cores[(number + 1) % len(cores)]
        for kind, of_sides in subjects.items():
            with ExitStack() as stack:
                children = {
                    side: stack.enter_context(Child(kind, sides[side].root, of_sides[side], core))
                    for side, core in zip(order, (first, second), strict=True)
                }
                check(kind, sides, of_sides, children)
                names = [figure.name for figure in figures if figure.kind == kind]
                for name, best in best_of(children, order, names, first).items():
                    for side, (value, share) in best.items():
                        values[name][side].append(value)
                        shares[name].append(share)
        progress()
    return [Compared(figure, values[figure.name], median(shares[figure.name])) for figure in figures]


def orders(pairs: int, source: random.Random) -> list[Order]:
    """Draw the side that goes first in each pair: at random, each side equally often.

    For an odd number of pairs, one side goes first once more.
    """
    drawn = [_ORDERS[pair % 2] for pair in range(pairs)]
    source.shuffle(drawn)
    return drawn


def best_of(
    children: Mapping[SideName, Child], order: Sequence[SideName], figures: Sequence[str], core: int | None
) -> dict[str, dict[SideName, tuple[float, float]]]:
    """Return the least value of each figure and side over its slices, with its share of the core.

    The two sides of a figure follow each other, and the first one changes with every turn. The turns of a figure are
    spread over the time of all figures, because other load of the machine often lasts longer than one figure.
    """
    found: dict[str, dict[SideName, list[tuple[float, float]]]] = {
        name: {side: [] for side in order} for name in figures
    }
    for turn in range(TURNS):
        for name in figures:
            for side in order if turn % 2 == 0 else reversed(order):
                found[name][side].append(children[side].measure(name, core))
    return {name: {side: min(turns) for side, turns in sides.items()} for name, sides in found.items()}


def check(kind: Kind, sides: Mapping[SideName, Side], subjects: Subjects, children: Mapping[SideName, Child]) -> None:
    """Check that each child runs its own side's code, and that both give the same answers.

    Raises:
        ChildFailed: a child imported other code.
        OtherWork: the answers differ.
    """
    told = {side: child.about() for side, child in children.items()}
    for side, about in told.items():
        root = subjects[side]
        own = {
            "hot_path": (root / "benchmarks" / "hot_path.py", root / "src" / "torchserve_neuron_lstm"),
            "archive": (root / "neuron_lstm.py", root / "torchserve_neuron_lstm"),
        }[kind]
        loaded = Path(about["script"]), Path(about["package"])
        if [path.resolve() for path in loaded] != [path.resolve() for path in own]:
            raise ChildFailed(f"{side} ({sides[side].commit}) runs {loaded[0]} with {loaded[1]}: not its own")
    refuse_other_work(kind, told["base"], told["head"])


def usable_cores() -> list[int | None]:
    """The cores that this process may use; a single None where the system does not pin."""
    if not hasattr(os, "sched_getaffinity"):
        return [None]
    return [*sorted(os.sched_getaffinity(0))]
