import random
from collections.abc import Callable
from pathlib import Path

import pytest
from printed import Capture, refusal
from streaming_archive import streaming_manifest, write_streaming_archive
from tiny_archive import as_mar, as_tar

from torchserve_neuron_lstm.config.streaming import StreamingConfig
from torchserve_neuron_lstm.inference.errors import ArchiveError
from torchserve_neuron_lstm.inference.reader import ArchiveReader

Damage = Callable[[Path], Path]


@pytest.fixture(autouse=True)
def sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set another directory for sessions than the user's own."""
    monkeypatch.setenv("NEURON_LSTM_SESSIONS", str(tmp_path / "kept"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_streaming_archive(tmp_path / "tiny", streaming_manifest(StreamingConfig().settings("0" * 32)))


def cut(archive: Path) -> Path:
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    return archive


def with_other_bytes(archive: Path) -> Path:
    """The file with a range of compressed bytes inverted: a checksum no longer holds."""
    content = bytearray(archive.read_bytes())
    middle = content.index(b"variants.json") + 100 if archive.suffix == ".mar" else len(content) // 2
    content[middle : middle + 20] = bytes(byte ^ 0xFF for byte in content[middle : middle + 20])
    archive.write_bytes(content)
    return archive


def with_manifest(content: bytes) -> Damage:
    def damage(folder: Path) -> Path:
        (folder / "variants.json").write_bytes(content)
        return folder

    return damage


DAMAGES: dict[str, Damage] = {
    "half a .mar": lambda folder: cut(as_mar(folder)),
    "half a .tar.gz": lambda folder: cut(as_tar(folder)),
    "other bytes in a .mar": lambda folder: with_other_bytes(as_mar(folder)),
    "other bytes in a .tar.gz": lambda folder: with_other_bytes(as_tar(folder)),
    "no UTF-8 in a folder": with_manifest(b'{"backend": "\xff"}'),
    "no UTF-8 in a .mar": lambda folder: as_mar(with_manifest(b"\xff")(folder)),
    "no JSON in a folder": with_manifest(b"{"),
    "no JSON in a .tar.gz": lambda folder: as_tar(with_manifest(b"")(folder)),
    "no object": with_manifest(b"[]"),
}


def is_refused(read: Callable[[ArchiveReader], str], archive: Path, expected: str) -> bool:
    """Whether an archive is refused; otherwise the read values must be the written ones."""
    try:
        assert read(ArchiveReader(archive)) == expected
    except ArchiveError:
        return True
    return False


@pytest.mark.parametrize("command", ["inspect", "sessions"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_archive_is_a_refusal(damage: Damage, command: str, folder: Path, capsys: Capture) -> None:
    archive = damage(folder)

    error = refusal(capsys, command, archive)
    assert error.startswith(f"error: {archive} is damaged: ")
    assert "Traceback" not in error


@pytest.mark.parametrize("content", [b"\xff", b"{", b"[" * 100_000])
def test_a_damaged_manifest_of_torchserve_is_a_refusal(content: bytes, folder: Path, capsys: Capture) -> None:
    (folder / "MAR-INF" / "MANIFEST.json").write_bytes(content)

    error = refusal(capsys, "sessions", as_mar(folder))
    assert "is damaged: MAR-INF/MANIFEST.json is not JSON" in error
    assert "give --name" in error
    assert "is not as it was packaged" in refusal(capsys, "sessions", str(folder), "--name", "tiny")


@pytest.mark.few(1)
@pytest.mark.parametrize("pack", [as_mar, as_tar])
def test_any_damaged_bytes_are_refused_or_harmless(pack: Damage, folder: Path) -> None:
    archive = pack(folder)
    content, text = archive.read_bytes(), ArchiveReader(archive).manifest_json()
    draw = random.Random(0)
    damaged = [content[:length] for length in range(0, len(content), 10)]
    for _ in range(300):
        other = bytearray(content)
        other[draw.randrange(len(other))] ^= 1 << draw.randrange(8)
        damaged.append(bytes(other))
    refused = 0
    for one in damaged:
        archive.write_bytes(one)
        refused += is_refused(ArchiveReader.manifest_json, archive, text)
        refused += is_refused(ArchiveReader.model_name, archive, "tiny")

    assert refused > len(damaged) // 2
