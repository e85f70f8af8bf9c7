"""Writing of variants.json, the manifest of an archive, and digests of the archive's files for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from .json_codec import to_json
from .manifest import FILE_NAME, FORMAT, Manifest, ManifestError, parse_manifest, sha256_of


def manifest_text(manifest: Manifest) -> str:
    """Return the text of variants.json. Equal manifests have equal texts.

    Raises `ManifestError`: a number is not finite, or `read_manifest` would refuse the text.
    """
    try:
        written = {"format": FORMAT, **to_json(Manifest, _with_sorted_mappings(manifest))}
        text = json.dumps(written, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        text.encode()
    except (TypeError, ValueError) as error:
        raise ManifestError(f"the manifest cannot be written: {error}") from error
    parse_manifest(text)
    return text


def write_manifest(manifest: Manifest, directory: Path) -> None:
    """Write variants.json into the archive's root. Raises `ManifestError`: as `manifest_text`."""
    (directory / FILE_NAME).write_text(manifest_text(manifest), encoding="utf-8")


def _with_sorted_mappings(manifest: Manifest) -> Manifest:
    names = ("host", "produced_by", "files")
    mappings: dict[str, Any] = {name: dict(sorted(getattr(manifest, name).items())) for name in names}
    return replace(manifest, **mappings)


_NOT_DIGESTED = frozenset({FILE_NAME, "MAR-INF/MANIFEST.json", "SHA256SUMS"})


def digest_files(directory: Path) -> dict[str, str]:
    """Return the sha256 of every file that goes into the archive, by relative path, in order.

    The two manifests and the list SHA256SUMS are left out, and so is what torch-model-archiver leaves out: hidden
    folders and caches.

    Raises `OSError`: a folder or a file cannot be read.
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
