"""Digests of the files that go into an archive, for its manifest and its list."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from .manifest import FILE_NAME, sha256_of

_NOT_DIGESTED = frozenset({FILE_NAME, "MAR-INF/MANIFEST.json", "SHA256SUMS"})


def digest_files(directory: Path) -> dict[str, str]:
    """Return the sha256 of every file that goes into the archive, by relative path, in order.

    The two manifests and the list SHA256SUMS are left out, and so is what torch-model-archiver leaves out: hidden
    folders and caches.

    Raises:
        OSError: a folder or a file cannot be read.
    """
    paths = {path.relative_to(directory).as_posix(): path for path in _files_below(directory)}
    return {name: sha256_of(paths[name]) for name in sorted(paths) if _is_archived(PurePosixPath(name))}


def _files_below(directory: Path) -> Iterator[Path]:
    # Not `rglob`, which leaves out what it cannot read.
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            yield from _files_below(path)
        elif path.is_file():
            yield path


def _is_archived(path: PurePosixPath) -> bool:
    folders = path.parts[:-1]
    hidden = any(folder in {"__pycache__", "__MACOSX"} or folder.startswith(".") for folder in folders)
    return not hidden and str(path) not in _NOT_DIGESTED
