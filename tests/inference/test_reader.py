import json
import os
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_archive import as_mar, as_tar, make_archive

from torchserve_neuron_lstm.handlers.neuron_lstm import check_folder
from torchserve_neuron_lstm.inference.errors import ArchiveError
from torchserve_neuron_lstm.inference.reader import ArchiveReader

Pack = Callable[[Path], Path]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sums").mkdir()
    return make_archive(tmp_path / "sums")


@pytest.fixture(autouse=True)
def temporary(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files, set after the archive was made: torch leaves files of its own."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "temporary"


@pytest.mark.parametrize("pack", [as_mar, as_tar])
def test_a_packed_archive_is_unpacked_for_as_long_as_it_is_needed(folder: Path, temporary: Path, pack: Pack) -> None:
    archive = pack(folder)
    with ArchiveReader(archive).unpacked() as directory:
        check_folder(str(directory), None)
        assert temporary in directory.parents

    assert list(temporary.iterdir()) == []


def test_a_folder_is_used_where_it_is(folder: Path) -> None:
    with ArchiveReader(folder).unpacked() as directory:
        assert directory == folder

    assert (folder / "variants.json").is_file()


def test_a_file_that_is_no_archive_of_ours_is_refused(tmp_path: Path) -> None:
    text, cut, beginning, other = (tmp_path / name for name in ("text.mar", "cut.tar.gz", "beginning.mar", "other.mar"))
    text.write_text("hello")
    with tarfile.open(cut, "w:gz") as file:
        file.add(text, "sums/text")
        file.add(__file__, "sums/more")
    whole = Path(shutil.copy(cut, tmp_path / "whole.tar.gz"))
    cut.write_bytes(cut.read_bytes()[:-40])
    with zipfile.ZipFile(other, "w") as file_of_other:
        file_of_other.writestr("MAR-INF/MANIFEST.json", "{}")
    beginning.write_bytes(other.read_bytes()[:-30])
    both, deep, pipe = (tmp_path / name for name in ("both.mar", "deep.mar", "pipe.mar"))
    for archive, name in ((both, "a/b"), (deep, "b/" * 101)):
        with zipfile.ZipFile(archive, "w") as file_of_other:
            file_of_other.writestr("a", "")
            file_of_other.writestr(name, "")
    os.mkfifo(pipe)
    expected = {
        tmp_path / "nothing": "there is no archive",
        text: "is not an archive: expected a .mar",
        pipe: "there is no archive",
        both: "is damaged: a file and a folder have the same name",
        **dict.fromkeys((cut, deep), "is damaged"),
        beginning: "is damaged: its end is missing",
        **dict.fromkeys((other, whole), "has no variants.json: it was not packaged with --handler neuron_lstm"),
    }
    for path, said in expected.items():
        with pytest.raises(ArchiveError, match=said), ArchiveReader(path).unpacked():
            pass
    for path in (other, whole):
        with pytest.raises(ArchiveError, match=expected[path]):
            ArchiveReader(path).manifest_json()


@pytest.mark.parametrize("name", ["../outside", "a/" * 101 + "a"], ids=["outside", "deep"])
def test_a_file_that_would_land_outside_or_too_deep_is_refused(tmp_path: Path, temporary: Path, name: str) -> None:
    archive = tmp_path / "evil.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(__file__, name)
    with pytest.raises(ArchiveError, match="damaged"), ArchiveReader(archive).unpacked():
        pass

    assert list(tmp_path.rglob("outside")) == []
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("pack", [lambda folder: folder, as_mar, as_tar])
def test_a_file_that_is_too_large_to_be_one_of_an_archive_is_not_read(
    folder: Path, pack: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few kilobytes of a zip can become as many gigabytes."""
    monkeypatch.setattr("torchserve_neuron_lstm.inference.reader._MOST_BYTES", 100)

    with pytest.raises(ArchiveError, match=r"is damaged: variants\.json has \d+ bytes: expected at most 100"):
        ArchiveReader(pack(folder)).manifest_json()


@pytest.mark.timeout(20)
def test_a_pipe_in_a_folder_is_no_file_of_an_archive(folder: Path) -> None:
    """It is not waited for."""
    (folder / "variants.json").unlink()
    os.mkfifo(folder / "variants.json")

    with pytest.raises(ArchiveError, match=r"has no variants\.json"):
        ArchiveReader(folder).manifest_json()


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("told", "message"),
    [
        (None, "has no modelFile of the model"),
        ([], "has no modelFile of the model"),
        ({"model": []}, "has no modelFile of the model"),
        ({"model": {}}, "has no modelFile of the model"),
        *(
            ({"model": {"modelFile": name}}, "is not the name of a file")
            for name in (3, "/dev/zero", "../a.py", "a\0", ".")
        ),
    ],
)
def test_a_file_outside_an_archive_is_none_of_its_files(folder: Path, told: object, message: str) -> None:
    """The manifest of torch-model-archiver may be anything."""
    (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(told))

    with pytest.raises(ArchiveError, match=message):
        ArchiveReader(folder).file_name("modelFile")
    (folder / "MAR-INF" / "MANIFEST.json").write_text('{"model": {"modelName": "\\u001b[31m"}}')
    with pytest.raises(ArchiveError, match="the model's name has control characters"):
        ArchiveReader(folder).model_name()


@pytest.mark.timeout(20)
def test_long_facts_of_a_file_in_a_tar_are_not_read(tmp_path: Path) -> None:
    """Python would take hours for a million digits, which compress to 1 KB."""
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as file:
        (member := tarfile.TarInfo("m/variants.json")).pax_headers = {"comment": "9" * 1_000_000}
        file.addfile(member)

    with pytest.raises(ArchiveError):
        ArchiveReader(tmp_path / "a.tar.gz").manifest_json()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE])
def test_a_tar_holds_files_and_folders_alone(tmp_path: Path, temporary: Path, kind: bytes) -> None:
    """Python's filter follows a link whose path is too long out of the folder: CVE-2025-4517."""
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as file:
        member = tarfile.TarInfo("m/link")
        member.type, member.linkname = kind, "m/variants.json"
        file.addfile(member)
    refusal = r"'m/link' is neither a file nor a folder|its end is missing"  # a sparse file ends the reading
    with pytest.raises(ArchiveError, match=refusal), ArchiveReader(tmp_path / "a.tar.gz").unpacked():
        pass

    assert list(temporary.iterdir()) == []


def test_a_tar_of_another_compression_is_no_archive(folder: Path) -> None:
    """A few kilobytes of bzip2 can become as many gigabytes."""
    archive = Path(shutil.make_archive(str(folder), "bztar", folder.parent, folder.name))
    with pytest.raises(ArchiveError, match="is not an archive"):
        ArchiveReader(archive).manifest_json()


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_file_that_a_mar_names_many_times_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "a.mar", "w") as file:
        for _ in range(100):
            file.writestr("variants.json", b"{}")
    contents = iter([b"{}"])
    monkeypatch.setattr(zipfile.ZipFile, "read", lambda file, name: next(contents))

    assert ArchiveReader(tmp_path / "a.mar").files_of(["variants.json"]) == {"variants.json": b"{}"}
