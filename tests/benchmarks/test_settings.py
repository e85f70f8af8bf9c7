from __future__ import annotations

from io import StringIO

from benchmarks.settings import SETTINGS, Figures, Setting, ratio, table
from rich.console import Console


def figures(lone: list[float], rate: float) -> Figures:
    """The figures of some rounds."""
    return Figures(
        lone, {16: [rate] * len(lone), 64: [rate] * len(lone)}, {16: [5.0] * len(lone), 64: [5.0] * len(lone)}
    )


def test_ratios_are_taken_round_by_round() -> None:
    """A slowdown of a whole round is in both figures."""
    assert ratio([2.0, 20.0, 3.0], [1.0, 10.0, 2.0]) == 2.0


def test_every_setting_has_a_row_with_its_ratios_to_the_first() -> None:
    """The ratios are beside the figures."""
    measured = {Setting(): figures([4.0, 6.0, 5.0], 100.0), Setting(batch_size=1): figures([2.0, 3.0, 2.5], 50.0)}
    printed = StringIO()
    Console(file=printed, width=200).print(table(measured))

    first, second = [line.split() for line in printed.getvalue().splitlines() if "x1.00" in line]
    assert first[:2] == ["32", "1"]
    assert first[4:] == ["5.0", "x1.00", "100.0", "x1.00", "100.0", "x1.00", "5.0", "x1.00", "5.0", "x1.00"]
    assert second[4:8] == ["2.5", "x0.50", "50.0", "x0.50"]


def test_every_setting_is_served_under_a_name_of_its_own() -> None:
    """TorchServe refuses a name that is already registered."""
    assert len({setting.name for setting in SETTINGS}) == len(SETTINGS) > 8
