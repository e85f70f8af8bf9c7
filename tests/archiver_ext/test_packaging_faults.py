"""Packaging on a disk that fails: each kind of call on its files fails once, or from then on."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import failing_files
import pytest
from failing_files import Fault

from .conftest import MODEL, Project, save_weights

PROGRAM = Path(__file__).with_name("packaging_faults.py")
FORMATS = {"default": ".mar", "tgz": ".tar.gz", "no-archive": ""}
ADVICE = (
    *("make room on its disk", "change its permissions", "mounted read-only"),
    *("errors of its disk in the system's log", "raise the limit of open files"),
    *("stale file handle", "free memory", "package the model again"),
)
pytestmark = [pytest.mark.xdist_group("packaging-faults"), pytest.mark.ci]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's project, with archives of it in each format and one that is unpacked and not yet listed."""
    root = tmp_path_factory.mktemp("root")
    for name in ("project", "temporary", "store"):
        (root / name).mkdir()
    project = Project(root / "project", root / "temporary")
    (project.folder / "model.py").write_text(MODEL)
    project.configure(batch=[1], length=[4])
    save_weights(project)
    done = project.archive("--archive-format", "no-archive", "--export-path", str(root / "store"))
    assert done.returncode == 0, done.stderr
    shutil.copytree(root / "store" / "tiny", root / "previous")
    shutil.copytree(root / "store" / "tiny", root / "tree", ignore=shutil.ignore_patterns("MAR-INF", "SHA256SUMS"))
    return root


def trials(failing_library: Path, root: Path, task: str, counts: Mapping[Fault, int]) -> list[dict[str, Any]]:
    """Trials of a task, one of each kind of call, and the first one without a fault."""
    _previous(root, task.partition(":")[2])
    given = [f"{one.name}:{count}" for one, count in counts.items()]
    without, *faults = failing_files.trials(failing_library, PROGRAM, root, task, *given)
    assert (without["code"], without["whole"], without["left"]) == (0, True, []), without
    return faults


def _previous(root: Path, form: str) -> None:
    target = root / f"previous{FORMATS[form]}"
    if form == "default" and not target.exists():
        shutil.make_archive(str(root / "previous"), "zip", root / "previous")
        (root / "previous.zip").rename(target)
    elif form == "tgz" and not target.exists():
        shutil.copytree(root / "previous", root / "packed" / "tiny")
        shutil.make_archive(str(root / "previous"), "gztar", root / "packed", "tiny")


def violated_properties(trial: Mapping[str, Any]) -> list[str]:
    said, properties = trial["said"], {}
    properties["leftovers are reported"] = all(path in said for path in trial["left"])
    if trial["code"] == 0:
        properties["the archive is whole"] = trial["whole"]
    else:
        error = said.rpartition("error: ")[2]
        properties["the previous archive is untouched"] = trial["same"] or "is half written" in error
        properties["the error names a file"] = "/" in error or "model" in error or "weights" in error
        properties["the error says what to do"] = any(advice in error for advice in ADVICE)
        properties["it is not taken for a bug"] = "Traceback" not in said
    return [name for name, holds in properties.items() if not holds]


def check(found: list[dict[str, Any]]) -> None:
    broken = [
        (violated_properties(trial), trial["calls"][:1], trial["said"][-500:])
        for trial in found
        if violated_properties(trial)
    ]
    assert not broken, "\n".join(map(repr, broken))
    parts, faults = ([trial for trial in found if (trial["fault"] == "PART") is part] for part in (True, False))
    assert [trial for trial in parts if trial["code"]] == []  # the rest follows with the next call
    assert sum(trial["code"] == 1 for trial in faults) > len(faults) // 4


@pytest.mark.parametrize("task", ["publish:default", "rewrite:no-archive"])
def test_a_fault_leaves_the_previous_archive_or_makes_a_whole_one(failing_library: Path, root: Path, task: str) -> None:
    check(trials(failing_library, root, task, {Fault.USUAL: 1, Fault.PART: 1}))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", ["publish", "rewrite"])
def test_every_kind_of_fault_in_every_format(failing_library: Path, root: Path, kind: str, form: str) -> None:
    check(trials(failing_library, root, f"{kind}:{form}", {fault: 3 for fault in Fault if fault is not Fault.NONE}))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", [Fault.USUAL, Fault.FULL], ids=lambda fault: fault.name)
def test_the_whole_command_on_a_disk_that_fails(failing_library: Path, root: Path, fault: Fault) -> None:
    check(trials(failing_library, root, "package:default", {fault: 1}))
