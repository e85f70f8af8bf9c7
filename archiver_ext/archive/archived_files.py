"""Files of an archive, read from its bytes; refused if another reader could see other files.

TorchServe reads a .mar from its start, entry by entry, as Java's ZipInputStream does; Python goes by the directory at
its end. A file of which the two see different contents could be signed as one and served as the other. Readers of tar
differ in more ways, so a .tar.gz is neither signed nor verified.
"""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import IO

from ...config.file_errors import describe_cause
from ...config.manifest import digest_of
from ...handlers.neuron_lstm import LIST, check_folder, check_signature, misplaced, parse_list, refuse
from ...inference.reader import DAMAGE, ArchiveReader, is_zip
from ..errors import PackagingError

_LOCAL_HEADER = struct.Struct("<4sHHHHHIIIHH")
_ZIP64 = struct.Struct("<HHQQ")
_FLAGS = 0x806  # UTF-8 names, and two bits on the speed of compression; not encryption, not sizes after the data
_LONGEST_LIST = 1 << 26
"""Bytes of a list: half a million files."""


def check_files(archive: Path) -> None:
    """Compare every file of a .mar, a .tar.gz or a folder with its list. Nothing of it is run.

    Raises `ArchiveError`: it is not as it was packaged, or cannot be read.
    """
    if archive.is_dir() or is_zip(archive):
        check_packed_files(archive, None)
        return
    with ArchiveReader(archive).unpacked() as folder:
        check_packed_files(folder, None)


def check_packed_files(archive: Path, trusted_keys: Path | None) -> int:
    """Compare every file of a .mar or a folder with its list, and the signature with the keys, if given.

    Nothing of it is run or unpacked. Returns the number of files.

    Raises `PackagingError`: it is a .tar.gz, or not as it was packaged and signed, or cannot be read.
    """
    keys = None if trusted_keys is None else str(trusted_keys)
    try:
        if archive.is_dir():
            listed, _ = check_folder(str(archive.resolve()), keys)
            if keys is not None:
                _refuse_bytecode(archive)
            return len(listed)
        digests, content = _digests(archive)
        listed, signed, signature = parse_list(content)
        if keys is not None:
            check_signature(signed, signature, keys)
        changed = [f"{name} was changed" for name in listed if digests.get(name, listed[name]) != listed[name]]
        refuse(misplaced(set(digests), listed) + changed)
        return len(listed)
    except OSError as error:
        raise PackagingError(f"{archive}: {describe_cause(error)}") from error
    except DAMAGE as error:
        raise PackagingError(f"{archive}: {error}") from error


def _refuse_bytecode(folder: Path) -> None:
    # A worker checks its own bytecode, but planted one would leave that check out. Python writes it where a model ran.
    if found := sorted(str(path.relative_to(folder)) for path in folder.glob("__pycache__/neuron_lstm.*")):
        raise PackagingError(
            f"{folder}: {', '.join(found)} is not in {LIST}: delete it, Python makes it again when it is needed"
        )


def _digests(archive: Path) -> tuple[dict[str, str], bytes]:
    """The sha256 of each file except the list, "" of each folder, and the content of the list."""
    digests: dict[str, str] = {}
    content = b""
    if not is_zip(archive):
        raise PackagingError(
            f"{archive} is not a .mar or a folder, and nothing else is signed or verified: readers of a .tar.gz can "
            "see different files; package the model without --archive-format tgz"
        )
    with archive.open("rb") as file, zipfile.ZipFile(file) as packed:
        _check_layout(file, packed)
        for entry in packed.infolist():
            with packed.open(entry) as data:
                name = entry.orig_filename
                parts = name.removesuffix("/").split("/")
                if name in digests or {"", ".", ".."} & set(parts) or "\\" in name or not name.isprintable():
                    raise PackagingError(f"{archive}: the name {name!r} is there twice, or leads out of the archive")
                if name == LIST:
                    content = data.read(_LONGEST_LIST + 1)
                    if len(content) > _LONGEST_LIST:
                        raise PackagingError(f"{archive}: {LIST} has more than {_LONGEST_LIST} bytes")
                digests[name] = digest_of(data) if not name.endswith("/") else ""
                if data.read(1):
                    raise PackagingError(f"{archive}: the folder {name!r} has content")
    digests.pop(LIST, None)
    return digests, content


def _check_layout(file: IO[bytes], archive: zipfile.ZipFile) -> None:
    """Check that the entries of the directory are all that precedes it, one right after the other."""
    position = 0
    for entry in sorted(archive.infolist(), key=lambda entry: entry.header_offset):
        file.seek(position)
        header = file.read(_LOCAL_HEADER.size)
        if entry.header_offset != position or len(header) < _LOCAL_HEADER.size:
            raise zipfile.BadZipFile(f"there are other bytes before {entry.filename!r}")
        signature, _, flags, method, _, _, _, packed, size, name_size, extra_size = _LOCAL_HEADER.unpack(header)
        name, extra = file.read(name_size), file.read(extra_size)
        if len(extra) == _ZIP64.size and (packed, size) == (0xFFFFFFFF, 0xFFFFFFFF):
            kind, length, size, packed = _ZIP64.unpack(extra)
            extra = b"" if (kind, length) == (1, 16) else extra
        told = (signature, flags & ~_FLAGS, method, packed, size, extra)
        known = (b"PK\3\4", 0, entry.compress_type, entry.compress_size, entry.file_size, b"")
        # TorchServe would read an entry of its own behind the `size` bytes of one that is not compressed.
        is_whole = method == zipfile.ZIP_DEFLATED or (method, packed) == (zipfile.ZIP_STORED, size)
        if not is_whole or told != known or name != entry.orig_filename.encode("utf-8" if flags & 0x800 else "ascii"):
            raise zipfile.BadZipFile(f"the entry {entry.filename!r} is not as torch-model-archiver writes it")
        position += _LOCAL_HEADER.size + name_size + extra_size + entry.compress_size
    if position != archive.start_dir:
        raise zipfile.BadZipFile("there are other bytes before its directory")
