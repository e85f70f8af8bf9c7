"""Helpers to start further processes of this package."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

PACKAGE = __package__.partition(".")[0]


def package_path() -> str:
    """Return a PYTHONPATH with which a process imports this same copy of the package."""
    found = Path(sys.modules[PACKAGE].__path__[0]).parent
    return os.pathsep.join(filter(None, [str(found), os.environ.get("PYTHONPATH")]))


def describe_exit(code: int) -> str:
    """Describe an exit code.

    >>> describe_exit(-11)
    'the process was ended by SIGSEGV'
    >>> describe_exit(3)
    'the process ended with exit code 3'
    """
    if code < 0:
        return f"the process was ended by {signal.Signals(-code).name}"
    return f"the process ended with exit code {code}"
