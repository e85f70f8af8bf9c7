"""The variable PYTHONPATH of a child process, by which the package under test may come."""

import os
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "PYTHONPATH"
NONE: Mapping[str, str] = {VARIABLE: ""}
"""Change of an environment for a host that must not find the package under test."""


def python_path(*folders: str | Path) -> str:
    """Return PYTHONPATH with these folders ahead of those of this process."""
    return os.pathsep.join(filter(None, [*map(str, folders), os.environ.get(VARIABLE)]))
