"""The criterion of workers that stay."""

from __future__ import annotations

from pathlib import Path

import pytest
from soak.standing import missed
from soak.workers import replaced_standing, worker_pids
from torchserve_process import TorchServe, free_ports

BEFORE = {"tagger 1": 10, "tagger 2": 11, "stream 1": 12}


@pytest.mark.parametrize(
    ("after", "replaced"),
    [
        (BEFORE, 0),
        ({"tagger 1": 11, "tagger 2": 10, "stream 1": 12}, 0),
        ({**BEFORE, "stream 1": 13}, 1),
        ({"tagger 1": 10, "stream 1": 12}, 1),
        ({"tagger 1": -1, "tagger 2": -1, "stream 1": 12}, 2),
        ({}, 3),
    ],
)
def test_each_worker_that_is_not_there_any_more_is_counted(after: dict[str, int], replaced: int) -> None:
    """Numbers of workers may change, process ids may not."""
    standing = replaced_standing(BEFORE, after)

    assert (standing.value, len(missed([standing]))) == (replaced, min(1, replaced))


def test_a_server_that_does_not_answer_has_no_workers(tmp_path: Path) -> None:
    """It has ended, and its workers with it."""
    inference, management = free_ports(2)

    assert worker_pids(TorchServe(inference, management, tmp_path / "log"), ["tagger"]) == {}
