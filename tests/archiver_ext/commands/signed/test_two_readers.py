"""Archives of which TorchServe and Python read different files: `neuron-lstm verify` refuses them."""

import io
import shutil
import struct
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from printed import Capture, refusal

from torchserve_neuron_lstm.inference.errors import ArchiveError
from torchserve_neuron_lstm.inference.reader import ArchiveReader

from .conftest import Said


def prefix(content: bytes) -> bytes:
    """Bytes before the first entry, which a reader that begins at the end skips."""
    return b"#!/bin/sh\n" + content


def entry_of_evil() -> bytes:
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w") as file:
        file.writestr("neuron_lstm.py", "import evil")
    return other.getvalue()[: other.getvalue().index(b"PK\1\2")]


def within_an_entry(content: bytes) -> bytes:
    """An entry behind the content of a stored one, as a part of it: a reader from the start takes it for the next."""
    file, hidden = io.BytesIO(), entry_of_evil()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(file, "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name) + hidden * (name == "weights.pt"))
        carrier = old.getinfo("weights.pt")
        places = new.getinfo("weights.pt").header_offset, new.start_dir
    made = bytearray(file.getvalue())
    for place in (places[0] + 14, made.index(b"weights.pt", places[1]) - 30):  # in front of the entry, in the directory
        struct.pack_into("<III", made, place, carrier.CRC, carrier.file_size + len(hidden), carrier.file_size)
    return bytes(made)


def hidden_entry(content: bytes) -> bytes:
    """An entry that is in front of the directory but not in it: TorchServe would write it."""
    entry = entry_of_evil()
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


def outside(content: bytes, name: str = "../evil.py", text: str = "") -> bytes:
    """A name that leads out of the folder."""
    file = io.BytesIO(content)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(name, text)
    return file.getvalue()


def folder_outside(content: bytes) -> bytes:
    return outside(content, "../../evil/")


def other_name(content: bytes) -> bytes:
    """A name that differs between the entry and the directory."""
    return content.replace(b"codec_of_tests.py", b"codec_of_tests.pz", 1)


def other_size(content: bytes) -> bytes:
    """An entry that says that its sizes follow the data."""
    flags = content.index(b"PK\3\4") + 6
    return content[:flags] + b"\x08\x00" + content[flags + 2 :]


TRICKS = [prefix, hidden_entry, within_an_entry, second_entry, outside, folder_outside, other_name, other_size]
FOLDERS = (("orjson/", ""), ("codec_of_tests.py/", ""), ("programs/", "content"))
TRICKS += [partial(outside, name=name, text=text) for name, text in FOLDERS]


@pytest.mark.parametrize("trick", TRICKS)
def test_a_zip_that_two_readers_see_differently_is_refused(
    made: Path, tmp_path: Path, verify: Callable[..., Said], trick: Callable[[bytes], bytes]
) -> None:
    """TorchServe reads entries from the start, Python by the directory at the end."""
    archive = tmp_path / "trick.mar"
    archive.write_bytes(trick((made / "signed-tiny.mar").read_bytes()))
    code, out, err = verify(archive)

    assert (code, out) == (1, "")
    assert err.startswith(f"error: {archive}: ")
    assert trick is not within_an_entry or "the entry 'weights.pt' is not as" in err
    if trick in (outside, folder_outside):
        with pytest.raises(ArchiveError, match="a name leads out of it"), ArchiveReader(archive).unpacked():
            pass


def test_a_tar_is_neither_signed_nor_verified(made: Path, verify: Callable[..., Said], capfd: Capture) -> None:
    """Readers of tar differ in too many ways."""
    archive = made / "tiny.tar.gz"
    before = archive.read_bytes()
    code, out, err = verify(archive)

    assert (code, out) == (1, "")
    assert f"error: {archive} is not a .mar or a folder" in err
    assert "package the model without --archive-format tgz" in err
    assert "is not a .mar or a folder" in refusal(capfd, "sign", archive, "--key", made / "own.pem")
    assert archive.read_bytes() == before


def test_bytecode_of_the_entry_is_refused_in_a_folder(made: Path, tmp_path: Path, verify: Callable[..., Said]) -> None:
    """Python would run it in place of the file, with the check of the worker left out."""
    folder = Path(shutil.copytree(made / "signed-tiny", tmp_path / "tiny"))
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "neuron_lstm.cpython-311.pyc").write_bytes(b"planted")
    code, _, err = verify(folder)

    assert (code, "__pycache__/neuron_lstm.cpython-311.pyc is not in SHA256SUMS" in err) == (1, True)
