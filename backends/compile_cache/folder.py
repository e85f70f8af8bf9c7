"""Folder of the cache: the environment names it, and it must belong to this user alone.

Its files are code that will run. So a folder that another user owns, or may enter, is not used.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from ...config.file_errors import describe_cause

VARIABLE = "NEURON_LSTM_CACHE"
"""The environment variable that names another folder, or is `off`."""

_OFF = "off"
_NAME = "torchserve-neuron-lstm"


@dataclass(frozen=True)
class CacheFolder:
    """The folder of the cache, or the reason why there is none."""

    path: Optional[Path]
    """None: nothing is cached."""
    note: Optional[str] = None
    """A problem that the user can solve."""


def cache_folder(environment: Mapping[str, str]) -> CacheFolder:
    """Make the folder, if it is missing, and check it.

    It is that of the environment, or `torchserve-neuron-lstm` in the user's directory for caches. Nothing is raised:
    without a cache, programs are compiled.
    """
    if environment.get(VARIABLE) == _OFF:
        return CacheFolder(None)
    try:
        path = _location(environment)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        problem = _problem(path.lstat())
    except OSError as error:
        return _unused(str(error.filename or "its folder"), describe_cause(error))
    except RuntimeError as error:  # there is no home directory
        return _unused("its folder", str(error))
    return CacheFolder(path) if problem is None else _unused(str(path), problem)


def _location(environment: Mapping[str, str]) -> Path:
    if named := environment.get(VARIABLE):
        return Path(named).absolute()
    caches = Path(environment.get("XDG_CACHE_HOME", ""))
    return (caches if caches.is_absolute() else Path.home() / ".cache") / _NAME


def _problem(found: os.stat_result) -> str | None:
    if not stat.S_ISDIR(found.st_mode):
        return "it is a link or a file, and must be a folder"
    if found.st_uid != os.geteuid():
        return "another user owns it, who could replace the code in it"
    if found.st_mode & 0o077:
        return "other users may enter it, who could replace the code in it: chmod 700"
    return None


def _unused(place: str, reason: str) -> CacheFolder:
    return CacheFolder(
        None, f"compiled programs are not cached: {place}: {reason} ({VARIABLE} names another folder, or {_OFF})"
    )
