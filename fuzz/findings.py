"""Inputs that violate a property, one for each cause, in a folder."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from .properties import PropertyViolation


def cause_of(error: BaseException) -> str:
    """Return the type of an error and the line that raised it.

    If a property was violated, the cause is the exception behind it, or the property itself if there is none. Two
    inputs with the same cause show the same defect.
    """
    known = error.cause if isinstance(error, PropertyViolation) and error.cause is not None else error
    frames = traceback.extract_tb(known.__traceback__)
    if isinstance(known, PropertyViolation):  # all violations are raised at the same line
        return str(known)
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "an unknown line"
    return f"{type(known).__name__} at {where}"


@dataclass
class Findings:
    """The causes found so far, each with its first input in a file and its traceback beside it."""

    directory: Path
    causes: set[str] = field(default_factory=set)

    def add(self, content: bytes, error: BaseException) -> None:
        """Write an input that violates a property, unless its cause is known."""
        cause = cause_of(error)
        if cause in self.causes:
            return
        self.causes.add(cause)
        name = blake2b(cause.encode(), digest_size=6).hexdigest()
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / f"{name}.input").write_bytes(content)
        (self.directory / f"{name}.txt").write_text(f"{cause}\n{_traceback(error)}", "utf-8", "backslashreplace")


def _traceback(error: BaseException) -> str:
    behind = [error.cause] if isinstance(error, PropertyViolation) and error.cause is not None else []
    return "\n".join("".join(traceback.format_exception(one)) for one in (error, *behind))


def read_causes(directory: Path) -> dict[str, str]:
    """Return the cause of each input in a folder, by name: of findings, and of processes that ended."""
    found: dict[str, str] = {}
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        if path.suffix == ".input":
            found[path.name] = path.with_suffix(".txt").read_text("utf-8").partition("\n")[0]
        elif path.suffix != ".txt":  # libFuzzer's own names: crash-, timeout-, oom-
            found[path.name] = f"the process ended: {path.name.partition('-')[0]}"
    return found
