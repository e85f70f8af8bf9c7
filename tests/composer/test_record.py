"""File of verdicts: written a line at a time, continued after a stop."""

from __future__ import annotations

from pathlib import Path

from composer.record import append, read
from composer.verdict import Verdict

ACCEPTED = Verdict(0, ("norm", "flip"), True, "accepted", "", "", "proved", 0.5)
REFUSED = Verdict(1, ("cell loop",), False, "refused", "no: “loop”\nat line 3", "because", "", 0.1)


def test_verdicts_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Only the wanted seeds, by seed."""
    file = tmp_path / "composed.jsonl"
    for verdict in (ACCEPTED, REFUSED):
        append(file, verdict)

    assert read(file, range(2)) == {0: ACCEPTED, 1: REFUSED}
    assert read(file, range(1, 9)) == {1: REFUSED}


def test_a_missing_file_has_no_verdicts(tmp_path: Path) -> None:
    """The first run begins without a file."""
    assert read(tmp_path / "composed.jsonl", range(9)) == {}


def test_a_line_that_was_cut_off_is_judged_again(tmp_path: Path) -> None:
    """A stop while a line is written loses that seed only."""
    file = tmp_path / "composed.jsonl"
    append(file, ACCEPTED)
    append(file, REFUSED)
    file.write_text(file.read_text("utf-8")[:-20], "utf-8")

    assert read(file, range(2)) == {0: ACCEPTED}

    append(file, REFUSED)
    assert read(file, range(2)) == {0: ACCEPTED, 1: REFUSED}
