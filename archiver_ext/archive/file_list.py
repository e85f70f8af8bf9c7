"""The list SHA256SUMS of an archive: written by packaging, and renewed by what rewrites an archive."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path

from ...config.manifest import FILE_NAME, sha256_of
from ...handlers.neuron_lstm import LIST, TITLE, parse_list
from ...inference.reader import STOCK_MANIFEST
from ..errors import PackagingError, refusing


def list_body(digests: Mapping[str, str]) -> bytes:
    """Return the lines that a signature is over, for the sha256 of each file by its path.

    Raises `PackagingError`: a name cannot be in the list.
    """
    lines = [TITLE, *(f"{digest}  {name}" for name, digest in sorted(digests.items()))]
    for name in digests:
        if "\n" in name:
            raise PackagingError(f"the file name {name!r} holds a line break: give the file another name")
    with refusing(UnicodeEncodeError, "a file name is not UTF-8 (", "): give the file another name"):
        return "".join(f"{line}\n" for line in lines).encode()


def list_text(body: bytes, signature: bytes | None = None) -> bytes:
    """Return the content of SHA256SUMS: its own sha256, the signature if there is one, and `body`."""
    below = body if signature is None else b"# ed25519 " + b64encode(signature) + b"\n" + body
    return b"# sha256 " + hashlib.sha256(below).hexdigest().encode() + b"\n" + below


def write_list(tree: Path, stock_manifest: str | None = None) -> None:
    """Write the list of an unpacked archive, unsigned.

    `stock_manifest` is the text of MAR-INF/MANIFEST.json where torch-model-archiver is still to write it.

    Raises `PackagingError`: a name cannot be in the list.
    """
    digests = {**digest_files(tree), FILE_NAME: sha256_of(tree / FILE_NAME)}
    stock = (tree / STOCK_MANIFEST).read_bytes() if stock_manifest is None else stock_manifest.encode()
    digests[STOCK_MANIFEST] = hashlib.sha256(stock).hexdigest()
    (tree / LIST).write_bytes(list_text(list_body(digests)))


def renewed_list(content: bytes, files: Mapping[str, Path]) -> tuple[bytes, bool]:
    """Return a list with the sha256 of new files, unsigned, and whether it was signed before.

    Raises `PackagingError`: the list is damaged.
    """
    digests, _, signature = parsed(content)
    return list_text(list_body({**digests, **{name: sha256_of(file) for name, file in files.items()}})), bool(signature)


def parsed(content: bytes) -> tuple[dict[str, str], bytes, bytes | None]:
    """Parse a list, as the entry file does. Raises `PackagingError`: the list is damaged."""
    with refusing(RuntimeError):
        return parse_list(content)


def digest_files(directory: Path) -> dict[str, str]:
    """Return the sha256 of every file that goes into the archive, by relative path, in order.

    Left out are the two manifests, SHA256SUMS, and what torch-model-archiver leaves out: hidden folders and caches.

    Raises `OSError`: a folder or a file cannot be read.
    """
    paths = {path.relative_to(directory).as_posix(): path for path in _archived_below(directory)}
    return {name: sha256_of(paths[name]) for name in sorted(paths.keys() - {FILE_NAME, STOCK_MANIFEST, LIST})}


def _archived_below(directory: Path) -> Iterator[Path]:
    # Not `rglob`, which leaves out what it cannot read.
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            if not (path.name in {"__pycache__", "__MACOSX"} or path.name.startswith(".")):
                yield from _archived_below(path)
        elif path.is_file():
            yield path
