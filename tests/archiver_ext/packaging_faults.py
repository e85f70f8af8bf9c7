"""Program of `test_packaging_faults.py`: archives are written, and calls on their files fail.

python packaging_faults.py FOLDER TASK FAULT:COUNT ... tries COUNT calls of each kind: a function, on a kind of file. It
writes a line of JSON for each.
"""

import contextlib
import hashlib
import io
import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from failing_files import FailingFiles, Fault, some_of_each

from torchserve_neuron_lstm.archiver_ext import archive_command, model_archiver
from torchserve_neuron_lstm.archiver_ext.archive.archived_files import check_files
from torchserve_neuron_lstm.archiver_ext.archive.writer import publish, rewrite_manifest
from torchserve_neuron_lstm.inference.errors import ArchiveError
from torchserve_neuron_lstm.inference.reader import ArchiveReader

SUFFIXES = {"default": ".mar", "tgz": ".tar.gz", "no-archive": ""}
WORDS = "--model-name tiny --version 1.0 --model-file model.py --serialized-file weights.pt --handler neuron_lstm"


@dataclass(frozen=True)
class Task:
    """Something that writes an archive, again and again."""

    root: Path
    format: str
    """The archive format."""
    run: Callable[[], int]
    """A function that writes it and returns an exit code."""

    @property
    def archive(self) -> Path:
        return self.root / "store" / f"tiny{SUFFIXES[self.format]}"

    def trial(self, files: FailingFiles, previous: Path, fault: Fault, successes: int) -> dict[str, Any]:
        """Run the task with a fault, where the archive `previous` is; return what is there afterwards."""
        for name in ("store", "temporary"):
            shutil.rmtree(self.root / name, ignore_errors=True)
            (self.root / name).mkdir()
        copy(previous, self.archive)
        before, said = content(self.archive), io.StringIO()
        with (
            contextlib.redirect_stderr(said),
            contextlib.redirect_stdout(io.StringIO()),
            files.below([self.root], fault, successes) as calls,
        ):
            code = self.run()
        left = self._take_away()
        return {
            "fault": fault.name,
            "calls": [call.replace(str(self.root), "") for call in calls],
            "code": code,
            "said": said.getvalue().replace(str(self.root), ""),
            "same": self.archive.exists() and content(self.archive) == before,
            "whole": is_whole(self.archive),
            "left": left,
        }

    def _take_away(self) -> list[str]:
        """Delete what is left over, as the user is told to, and return its paths."""
        found = [*(self.root / "store").rglob(".neuron-lstm-*"), *(self.root / "temporary").iterdir()]
        found += [path for path in (self.root / "store").iterdir() if path != self.archive and path not in found]
        for path in found:
            shutil.rmtree(path)
        return [f"/{path.relative_to(self.root).as_posix()}" for path in found]


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)


def content(archive: Path) -> dict[str, str]:
    paths = [path for path in archive.rglob("*") if path.is_file()] if archive.is_dir() else [archive]
    return {path.relative_to(archive).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def is_whole(archive: Path) -> bool:
    try:
        check_files(archive)
    except ArchiveError:
        return False
    return True


def flags(root: Path, form: str) -> model_archiver.Flags:
    more = f"--config-file model-config.yaml --export-path {root / 'store'} --archive-format {form} --force"
    return model_archiver.parse([*WORDS.split(), *more.split()])


def packaging(root: Path, form: str) -> Callable[[], int]:
    return lambda: archive_command.archive(flags(root, form), model_archiver.manifest_json(flags(root, form)))


def publishing(root: Path, form: str) -> Callable[[], int]:
    """The last step of the command, on a folder that is ready."""

    def run() -> None:
        publish(flags(root, form), root / "tree", model_archiver.manifest_json(flags(root, form)))

    return lambda: archive_command.guarded(run)


def rewriting(root: Path, form: str) -> Callable[[], int]:
    """A new manifest in an archive, as the commands that change one do."""
    archive = root / "store" / f"tiny{SUFFIXES[form]}"

    def run() -> None:
        rewrite_manifest(archive, ArchiveReader(archive).manifest_json() + "\n", archive)

    return lambda: archive_command.guarded(run)


TASKS = {"package": packaging, "publish": publishing, "rewrite": rewriting}


def main() -> None:
    """Let one call after the other fail, until none is left."""
    root, (kind, form), wanted = Path(sys.argv[1]), sys.argv[2].split(":"), [one.split(":") for one in sys.argv[3:]]
    os.chdir(root / "project")
    assert logging.lastResort is not None
    logging.getLogger().handlers = [logging.lastResort]  # to standard error as it is then
    tempfile.tempdir = os.environ["TMPDIR"] = str(root / "temporary")
    files, task = FailingFiles(), Task(root, form, TASKS[kind](root, form))
    previous = root / f"previous{SUFFIXES[form]}"
    without = task.trial(files, previous, Fault.NONE, 0)
    say(without)
    for name, count in wanted:
        for successes in some_of_each(without["calls"], int(count)):
            say(task.trial(files, previous, Fault[name], successes))


def say(found: dict[str, Any]) -> None:
    sys.stdout.write(f"{json.dumps(found)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
