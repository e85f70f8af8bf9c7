"""Compiled code from a directory on a file system mounted noexec: a copy where it may be mapped."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from .interface import LoadError


@contextlib.contextmanager
def executable_copy(directory: Path, names: Sequence[str]) -> Iterator[Path]:
    """Yield the directory, or a temporary copy of these files where code may be mapped.

    The copy may be deleted once the code is mapped.

    Raises:
        LoadError: the directory is on a file system mounted noexec, and no other directory is available.
    """
    if not _is_noexec(directory):
        yield directory
        return
    for parent in _copy_directories():
        if parent.is_dir() and os.access(parent, os.W_OK) and not _is_noexec(parent):
            with tempfile.TemporaryDirectory(prefix="neuron-lstm-", dir=parent) as copy:
                for name in names:
                    shutil.copyfile(directory / name, Path(copy) / name)
                yield Path(copy)
            return
    raise LoadError(
        f"{directory} is on a file system mounted noexec, so its compiled programs cannot be run, and none of "
        f"{', '.join(map(str, _copy_directories()))} can hold a copy: set TMPDIR to a directory that is writable and "
        f"not noexec, or package the model with backend: onnxruntime"
    )


def _is_noexec(directory: Path) -> bool:
    return bool(os.statvfs(directory).f_flag & os.ST_NOEXEC)


def _copy_directories() -> list[Path]:
    """Directories for a copy, best first."""
    named = [os.environ[name] for name in ("TMPDIR", "XDG_RUNTIME_DIR", "HOME") if name in os.environ]
    return [Path(parent) for parent in dict.fromkeys([*named, tempfile.gettempdir()])]
