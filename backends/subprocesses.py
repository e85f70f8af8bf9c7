"""Helpers to start further processes of this package."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

PACKAGE = __package__.partition(".")[0]


def package_path() -> str:
    """Return a PYTHONPATH with which a process imports this same copy of the package."""
    # The process may have another working directory. An empty entry is that directory, which is not on the path.
    entries = [str(Path(entry).absolute()) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return os.pathsep.join([str(Path(sys.modules[PACKAGE].__path__[0]).parent), *entries])


def python_command(module: str, function: str) -> list[str]:
    """Return a command that calls a function of a module; its result is the exit code.

    The current directory is not on the path: a user's file may have the name of one of our modules or of Python's.
    """
    code = f"import sys; sys.path[:] = filter(None, sys.path); import {module}; sys.exit({module}.{function}())"
    return [sys.executable, "-c", code]


def describe_exit(code: int) -> str:
    """Describe an exit code.

    >>> describe_exit(-11)
    'the process was ended by SIGSEGV'
    >>> describe_exit(3)
    'the process ended with exit code 3'
    """
    if code < 0:
        names = {int(one): one.name for one in signal.Signals}  # real-time signals have none
        return f"the process was ended by {names.get(-code, f'signal {-code}')}"
    return f"the process ended with exit code {code}"
