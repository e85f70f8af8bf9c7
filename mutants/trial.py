"""Tests in a copy of the repository, with one file changed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

Outcome = Literal["killed", "too slow", "survived"]

_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", "fuzz-findings")
_ALL_PASSED, _NONE_FOUND = 0, 5


class Tree:
    """A copy of the repository, which has the changed files."""

    def __init__(self, root: Path, folder: Path) -> None:
        shutil.copytree(root, folder, symlinks=True, ignore=_LEFT_OUT)
        self.folder = folder

    @contextmanager
    def changed(self, file: str, text: str) -> Iterator[None]:
        """Give a file another text within the block."""
        path = self.folder / file
        original = path.read_bytes()
        path.write_text(text, encoding="utf-8")
        try:
            yield
        finally:
            path.write_bytes(original)

    def run(self, tests: Sequence[str], seconds: float) -> Outcome:
        """Run tests until the first one fails, for at most so many seconds.

        Raises:
            RuntimeError: there is no such test.
        """
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not long", *tests]
        with subprocess.Popen(
            command,
            cwd=self.folder,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                return "too slow"
            finally:
                _kill_group(process)
        if process.returncode == _NONE_FOUND:
            raise RuntimeError(f"no tests: {' '.join(tests)}\n{output[-1000:]}")
        return "survived" if process.returncode == _ALL_PASSED else "killed"

    def _environment(self) -> dict[str, str]:
        """Python finds the copy before the installed package, and keeps no compiled file of another mutant."""
        return {
            **os.environ,
            "PYTHONPATH": str(self.folder / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "passive",
        }


def _kill_group(process: subprocess.Popen[str]) -> None:
    """Kill what the tests started and left."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
