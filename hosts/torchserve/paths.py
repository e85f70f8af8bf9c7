"""Settings of TorchServe that are a file or a folder.

TorchServe and its workers run in a separate folder. With a relative path, or a file that is missing, workers
do not start, and TorchServe starts them again without end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from ...inference.errors import ArchiveError

_FILES = ("metrics_config", "keystore", "private_key_file", "certificate_file", "cpp_log_config")
_FOLDERS = ("workflow_store", "model_server_home", "plugins_path")


def check_absolute(overrides: Mapping[str, str]) -> None:
    """Refuse a setting that is not an absolute path.

    Raises:
        ArchiveError: there is one; the message has the path to write.
    """
    for name, value in _given(overrides, (*_FILES, *_FOLDERS)):
        if not Path(value).is_absolute():
            raise ArchiveError(
                f"--set {name}: expected an absolute path, because TorchServe runs in another folder, got {value!r}: "
                f"{_remedy(name, value)}"
            )


def _remedy(name: str, value: str) -> str:
    if not value:
        return "give its path, or leave it out"
    path = Path(value).expanduser() if value.startswith("~/") else Path(value)  # a shell leaves KEY=~/FILE as it is
    return f"write {name}={path.absolute()}"


def check_files(overrides: Mapping[str, str]) -> None:
    """Refuse a setting that names no file that can be read here.

    Raises:
        ArchiveError: there is one.
    """
    for name, value in _given(overrides, _FILES):
        if not Path(value).is_file():
            raise ArchiveError(f"--set {name}: there is no file {value}")
        if not os.access(value, os.R_OK):
            raise ArchiveError(f"--set {name}: {value} cannot be read: change its permissions")


def _given(overrides: Mapping[str, str], names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    return ((name, overrides[name]) for name in names if name in overrides)
