"""A child process that measures one commit's code on request."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from threading import Timer
from types import TracebackType
from typing import Any, Literal

from typing_extensions import Self

Kind = Literal["hot_path", "archive"]
_PROGRAM = Path(__file__).with_name("child.py")
_SECONDS = 120  # limit of a reply


class ChildFailed(RuntimeError):
    """A child ended, hung, or runs code of another checkout; the message says which."""


def environment(root: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment in which the package and the scripts of a checkout are found first."""
    path = os.pathsep.join(filter(None, [str(root / "src"), str(root), inherited.get("PYTHONPATH")]))
    return {"OMP_WAIT_POLICY": "passive", **inherited, "PYTHONPATH": path}


class Child:
    """One process, from its start to its end.

    Processes load side by side; the first reply waits until its process has loaded.
    """

    def __init__(self, kind: Kind, root: Path, subject: Path, core: int | None) -> None:
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in __exit__
        self._process = subprocess.Popen(
            [sys.executable, str(_PROGRAM), kind, str(subject), "" if core is None else str(core)],
            env=environment(root, os.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._stderr.close()

    def about(self) -> dict[str, Any]:
        """The path of the code that the process runs, and its answers.

        Raises:
            ChildFailed: as `measure`.
        """
        return self._ask({"ask": "about"})

    def measure(self, figure: str, core: int | None) -> tuple[float, float]:
        """The figure, and the share of the core that the process got during the measurement.

        Raises:
            ChildFailed: the process ended, or did not reply in time; the message holds its output.
        """
        found = self._ask({"ask": "measure", "figure": figure, "core": core})
        return found["value"], found["share"]

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        limit = Timer(_SECONDS, self._process.kill)
        limit.start()
        try:
            print(json.dumps(question), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            limit.cancel()
        if not line:
            raise ChildFailed(self._last_words())
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _last_words(self) -> str:
        self._process.kill()
        code = self._process.wait()
        self._stderr.seek(0)
        return f"{' '.join(map(str, self._process.args[1:]))} ended ({code}):\n{self._stderr.read()}"  # type: ignore[index]  # the list above
