"""Sessions on a disk that fails: each call on the files of the store fails once, or from then on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import failing_files
import pytest
from failing_files import Fault

pytestmark = pytest.mark.ci

PROGRAM = Path(__file__).with_name("store_faults.py")
SHORT = {Fault.USUAL: 12, Fault.PART: 17, Fault.FULL: 40, Fault.READ_ONLY: 60}
"""The faults of the short form, and how many calls lie from one that fails to the next."""
FAULTS = [fault for fault in Fault if fault is not Fault.NONE]
Trials = list[dict[str, Any]]


@pytest.fixture(scope="module")
def some(failing_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Trials:
    return trials(failing_library, tmp_path_factory.mktemp("some"), SHORT)


def trials(failing_library: Path, folder: Path, strides: Mapping[Fault, int]) -> Trials:
    return failing_files.trials(
        failing_library, PROGRAM, folder, *(f"{one.name}:{count}" for one, count in strides.items())
    )


def check(found: Trials, fault: Fault) -> None:
    """Check the property: a refusal is documented, and all sessions are exact afterwards, on two workers."""
    mine = [trial for trial in found if trial["fault"] == fault.name]
    assert [trial for trial in mine if trial["problems"]] == []
    assert any(trial["calls"] for trial in mine)
    refused = [trial for trial in mine if set(trial["statuses"]) - {200}]
    if fault is Fault.PART:
        assert refused == []  # the rest follows with the next call
    else:
        assert len(refused) > len(mine) // 3


@pytest.mark.parametrize("fault", SHORT, ids=lambda fault: fault.name)
def test_sessions_continue_exactly_after_a_fault_of_their_file(some: Trials, fault: Fault) -> None:
    check(some, fault)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_call_on_the_file_can_fail(failing_library: Path, tmp_path: Path, fault: Fault) -> None:
    check(trials(failing_library, tmp_path, {fault: 1}), fault)


def test_each_kind_of_call_is_met(some: Trials) -> None:
    """The faults reach SQLite's own code, not Python's alone."""
    calls = {call.partition(" ")[0] for trial in some if trial["fault"] == "NONE" for call in trial["calls"]}

    assert {"open", "pread64", "pwrite64", "fsync", "lock", "flock", "mmap", "ftruncate", "unlink", "mkdir"} <= calls


def test_a_full_disk_is_told_as_one(some: Trials) -> None:
    full = [trial for trial in some if trial["fault"] == "FULL"]
    logged = {message for trial in full for message in trial["logged"]}

    assert {status for trial in full for status in trial["statuses"]} == {200, 507}
    assert [message for message in logged if not message.endswith("make room on its disk")] == []
