"""Code that is changed, and the tests that must notice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Area:
    """Files, and the tests of them."""

    sources: tuple[str, ...]
    """Glob patterns, from the repository's root."""
    tests: tuple[str, ...]
    """Files and folders, from the repository's root."""

    def files(self, root: Path) -> list[str]:
        """Return the files to change, from the root."""
        found = (path for pattern in self.sources for path in root.glob(pattern))
        return sorted(str(path.relative_to(root)) for path in found if path.name != "__init__.py")

    def tests_of(self, file: str, root: Path) -> list[str]:
        """Return the test files to run for a file: first those that bear its name, which fail soonest.

        They are listed one by one: pytest leaves out a folder that is named beside one of its files.
        """
        paths = [root / test for test in self.tests]
        files = [one for path in paths for one in (sorted(path.rglob("test_*.py")) if path.is_dir() else [path])]
        files.sort(key=lambda path: path.name != f"test_{Path(file).stem}.py")
        return [str(path.relative_to(root)) for path in files]


_ANALYSES = (
    "lowering/proof/*.py",
    "lowering/chunks/carry_analysis.py",
    "lowering/chunks/past_calls.py",
    "lowering/chunks/past_timesteps.py",
    "lowering/chunks/position_calls.py",
    "lowering/chunks/positions.py",
    "lowering/chunks/scans.py",
    "lowering/chunks/shared_writes.py",
    "lowering/one_request/uniform_values.py",
    "lowering/one_request/value_ranges.py",
    "lowering/ragged/*.py",
)

AREAS = {
    "bucketing": Area(("bucketing/*.py",), ("tests/bucketing",)),
    "formats": Area(("handlers/formats/*.py",), ("tests/handlers/formats", "tests/fuzz/test_targets.py")),
    "sessions": Area(("sessions/**/*.py",), ("tests/sessions", "tests/handlers/streaming")),
    "analyses": Area(_ANALYSES, ("tests/lowering",)),
}
"""The areas by the names of the command line."""
