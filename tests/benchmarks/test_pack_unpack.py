"""The benchmark of training: its batches, turns, floors and report, and a small run of all of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from benchmarks.pack_unpack.__main__ import main
from benchmarks.pack_unpack.contestants import Contestant, WrongAnswers, check, contestants
from benchmarks.pack_unpack.experiment import SETUPS, Classifier, Pass, Setup, make_batch, row_lengths, varied
from benchmarks.pack_unpack.floors import standings
from benchmarks.pack_unpack.measured import MASKED, OURS, PACKED, Measured, Run
from benchmarks.pack_unpack.report import draw, print_run, to_json
from benchmarks.pack_unpack.timing import Effort, take_turns
from benchmarks.standing import missed
from rich.console import Console

CPU = torch.device("cpu")


def measured(setup: Setup, which: Pass, longest: int, packed: float, ours: float) -> Measured:
    """Rounds in which the second takes twice the time of the first and the third, for all contestants."""
    seconds = {PACKED: packed, MASKED: 1.0, OURS: ours}
    return Measured(setup, which, longest, {name: (one, 2 * one, one) for name, one in seconds.items()})


def run_of(*found: Measured, on_cpu: bool = True) -> Run:
    """A run of these measurements."""
    return Run("a machine", on_cpu, 512, found)


def test_padded_data_has_every_length_again_and_again() -> None:
    """Lengths go from the longest down to 1, repeated for all rows; the longest come first."""
    assert row_lengths("B", 4, 10) == [4, 4, 4, 3, 3, 3, 2, 2, 1, 1]
    assert row_lengths("B", 10, 4) == [10, 9, 8, 7]
    assert row_lengths("A", 7, 2) == [7, 7]


@pytest.mark.parametrize("setup", SETUPS)
def test_batches_hold_padding_behind_their_rows(setup: Setup) -> None:
    """The number of ids that are not padding is the length."""
    batch = make_batch(setup, 5, 8, CPU)

    assert batch.ids.shape == (8, 5)
    for one in (batch, varied(batch)):
        assert torch.equal((one.ids != 0).sum(1), batch.lengths)
    assert batch.lengths.tolist() == sorted(batch.lengths.tolist(), reverse=True)


@pytest.mark.parametrize("setup", SETUPS)
def test_all_ways_come_to_the_same(setup: Setup) -> None:
    """The compiled contestant is left out, because it has the same code."""
    torch.manual_seed(0)
    check(contestants(Classifier(), compiles=False), varied(make_batch(setup, 12, 8, CPU)))


def test_another_answer_is_not_timed() -> None:
    """A contestant that differs from pack/unpack is named."""
    ways = {**contestants(Classifier(), compiles=False), OURS: Contestant(Classifier(), packs=True)}
    with pytest.raises(WrongAnswers, match="ours: logits differ by"):
        check(ways, make_batch("B", 12, 8, CPU))


def test_turns_are_taken_in_rounds_that_begin_with_another_each() -> None:
    """Each call is made twice before the timing; a short call is repeated within its turn."""
    made: list[str] = []
    calls = {"short": lambda: made.append("s"), "long": lambda: made.append("l")}

    def timer(call: object) -> float:
        assert callable(call)
        call()
        return 0.5 if made[-1] == "s" else 1.0

    seconds = take_turns(calls, Effort(rounds=2, fewest=1, budget_s=100, slice_s=1.0), timer)

    assert "".join(made) == "sl" + "sl" + "ssl" + "lss"
    assert seconds == {"short": (0.5, 0.5), "long": (1.0, 1.0)}


def test_a_gain_is_the_median_of_the_rounds_ratios() -> None:
    """A slow round that affects both changes no gain."""
    one = Measured("B", "forward", 8, {PACKED: (2.0, 9.0, 4.0), OURS: (1.0, 3.0, 2.0)})

    assert one.gain() == 2.0
    assert one.gain(PACKED) == 1.0
    assert one.took_ms(PACKED) == 4000


def test_floors_are_the_gain_on_long_padded_data_and_no_loss_anywhere() -> None:
    """Floors use the gain at 256 timesteps on a CPU, and the worst of each setup and pass."""
    both: Pass = "forward and backward"
    good = [measured("B", both, 128, 5, 1), measured("B", both, 256, 26, 1), measured("A", "forward", 32, 1, 1)]
    bad = [measured("B", both, 256, 9, 1), measured("A", "forward", 64, 0.8, 1), measured("A", "forward", 32, 1, 1)]

    assert missed(standings(run_of(*good))) == []
    assert [standing.value for standing in standings(run_of(*good))] == [26, 1, 5]
    assert missed(standings(run_of(*bad))) == [
        "missed: times faster than pack/unpack, forward and backward, setup B, T=256: 9.00, at least 10.00",
        "missed: times faster than pack/unpack, the worst: forward, setup A (T=64): 0.80, at least 0.91",
    ]
    assert missed(standings(run_of(*bad[2:], on_cpu=False))) == []
    assert len(missed(standings(run_of(*bad[2:])))) == 1


def test_a_run_is_told_to_people_and_machines_and_drawn(tmp_path: Path) -> None:
    """Every length has its line; the figure has two panels."""
    run = run_of(
        *(measured("B", which, longest, 4, 2) for which in ("forward", "forward and backward") for longest in (256, 32))
    )
    console = Console(width=120)
    with console.capture() as capture:
        print_run(run, standings(run), console)
    told = to_json(run, standings(run), {"threads": 2})
    draw(run, "B", tmp_path / "b.png")

    rows = [line.split() for line in capture.get().splitlines() if line.strip().endswith("2.00 x")]
    assert rows == [[str(t), "4000.0", "1000.0", "2000.0", "2.00", "x"] for t in (32, 256)] * 2
    assert json.loads(json.dumps(told))["about"] == {"threads": 2, "device": "a machine", "batch": 512}
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")


def test_a_tiny_run_writes_all_it_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two short lengths are run without the long one: a floor that was not measured is missed."""
    threads = str(torch.get_num_threads())
    options = ["--lengths", "4", "8", "--batch", "4", "--no-compile", "--device", "cpu", "--rounds", "1"]
    code = main([*options, "--threads", threads, "--json", str(tmp_path / "run.json"), "--plot", str(tmp_path)])
    found = json.loads((tmp_path / "run.json").read_text())
    measured_pairs: list[Mapping[str, object]] = found["measured"]

    assert code == 1
    assert "setup B, T=256: nan" in capsys.readouterr().out
    assert {(one["setup"], one["pass"], one["timesteps"]) for one in measured_pairs} == {
        (setup, which, longest) for setup in "AB" for which in ("forward", "forward and backward") for longest in (4, 8)
    }
    assert sorted(file.name for file in tmp_path.glob("*.png")) == ["pack_unpack_A.png", "pack_unpack_B.png"]


def test_the_note_shows_options_that_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    """Each option named in docs/training.md is an option of the program."""
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text("utf-8")
    with pytest.raises(SystemExit):
        main(["--help"])
    told = capsys.readouterr().out
    named = set(re.findall(r"--[a-z][a-z-]*", text))

    assert {"--lengths", "--full", "--device"} <= named
    assert all(option in told for option in named)
