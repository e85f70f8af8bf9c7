"""Archives of which TorchServe and Python read different files: `neuron-lstm verify` refuses them."""

from __future__ import annotations

import gzip
import io
import shutil
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Said


def prefix(content: bytes) -> bytes:
    """Bytes before the first entry, which a reader that begins at the end skips."""
    return b"#!/bin/sh\n" + content


def hidden_entry(content: bytes) -> bytes:
    """An entry that is in front of the directory but not in it: TorchServe would write it."""
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w") as file:
        file.writestr("neuron_lstm.py", "import evil")
    entry = other.getvalue()[: other.getvalue().index(b"PK\1\2")]
    end = content.rindex(b"PK\5\6")
    (start,) = struct.unpack_from("<I", content, end + 16)
    moved = bytearray(content[:start] + entry + content[start:])
    struct.pack_into("<I", moved, end + len(entry) + 16, start + len(entry))
    return bytes(moved)


def second_entry(content: bytes) -> bytes:
    """A second file of a name; which one is served depends on the reader."""
    file = io.BytesIO(content)
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(file, "a") as archive:
        archive.writestr("weights.pt", "other")
    return file.getvalue()


def outside(content: bytes) -> bytes:
    """A name that leads out of the folder."""
    file = io.BytesIO(content)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("../evil.py", "")
    return file.getvalue()


def other_name(content: bytes) -> bytes:
    """A name that differs between the entry and the directory."""
    return content.replace(b"codec_of_tests.py", b"codec_of_tests.pz", 1)


def other_size(content: bytes) -> bytes:
    """An entry that says that its sizes follow the data."""
    flags = content.index(b"PK\3\4") + 6
    return content[:flags] + b"\x08\x00" + content[flags + 2 :]


@pytest.mark.parametrize("trick", [prefix, hidden_entry, second_entry, outside, other_name, other_size])
def test_a_zip_that_two_readers_see_differently_is_refused(
    made: Path, tmp_path: Path, verify: Callable[..., Said], trick: Callable[[bytes], bytes]
) -> None:
    """TorchServe reads entries from the start, Python by the directory at the end."""
    archive = tmp_path / "trick.mar"
    archive.write_bytes(trick((made / "signed-tiny.mar").read_bytes()))
    code, out, err = verify(archive)

    assert (code, out) == (1, "")
    assert err.startswith(f"error: {archive}: ")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_a_link_in_a_tar_is_refused(made: Path, tmp_path: Path, verify: Callable[..., Said], kind: bytes) -> None:
    """It would be named like a listed file, and lead elsewhere."""
    archive = tmp_path / "link.tar.gz"
    with tarfile.open(made / "signed-tiny.tar.gz") as old, tarfile.open(archive, "w:gz", compresslevel=1) as new:
        for member in old:
            if member.name == "tiny/weights.pt":
                member.type, member.linkname, member.size = kind, "/etc/passwd", 0
            new.addfile(member, old.extractfile(member) if member.isreg() else None)
    code, _, err = verify(archive)

    assert (code, "tiny/weights.pt" in err) == (1, True)


def wrong_checksum(header: bytes) -> bytes:
    """A second entry file behind a header that Python takes for the end, and Java reads."""
    return header[:148] + b"7777777\0" + header[156:]


def other_magic(header: bytes) -> bytes:
    """A header of GNU's tar, of whose name another reader may take more."""
    return header[:257] + b"ustar  \0" + header[265:]


def folder_with_data(header: bytes) -> bytes:
    """A folder with a size, which some readers skip and others read as headers."""
    return header[:156] + tarfile.DIRTYPE + header[157:]


def contiguous(header: bytes) -> bytes:
    """A kind of file that Python reads as a regular one."""
    return header[:156] + tarfile.CONTTYPE + header[157:]


def behind_its_end(header: bytes) -> bytes:
    """Files after the zeros that end an archive."""
    return bytes(1024) + header


@pytest.mark.parametrize("trick", [wrong_checksum, other_magic, folder_with_data, contiguous, behind_its_end])
def test_a_tar_that_two_readers_see_differently_is_refused(
    made: Path, tmp_path: Path, verify: Callable[..., Said], trick: Callable[[bytes], bytes]
) -> None:
    """TorchServe's reader in Java does not stop where Python's does."""
    content = gzip.decompress((made / "signed-tiny.tar.gz").read_bytes())
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        last = tar.getmembers()[-1]
    end = last.offset_data + -(-last.size // 512) * 512
    added = tarfile.TarInfo("tiny/neuron_lstm.py" if trick in (wrong_checksum, behind_its_end) else "tiny/other")
    added.size = 512
    header = trick(added.tobuf(tarfile.PAX_FORMAT))
    if trick in (other_magic, folder_with_data, contiguous):
        number = sum(header[:148]) + 8 * 32 + sum(header[156:512])
        header = header[:148] + f"{number:06o}\0 ".encode() + header[156:]
    archive = tmp_path / "trick.tar.gz"
    archive.write_bytes(gzip.compress(content[:end] + header + b"print()".ljust(512, b"#") + bytes(1024), 1))
    code, out, err = verify(archive)

    assert (code, out) == (1, "")
    assert err.startswith(f"error: {archive}: ")
    assert "SHA256SUMS" not in err


def test_bytecode_of_the_entry_file_is_refused_in_a_folder(
    made: Path, tmp_path: Path, verify: Callable[..., Said]
) -> None:
    """Python would run it in place of the file, with the check of the worker left out."""
    folder = Path(shutil.copytree(made / "signed-tiny", tmp_path / "tiny"))
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "neuron_lstm.cpython-311.pyc").write_bytes(b"planted")
    code, _, err = verify(folder)

    assert (code, "__pycache__/neuron_lstm.cpython-311.pyc is not in SHA256SUMS" in err) == (1, True)
