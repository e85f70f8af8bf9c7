"""Archives that are loaded into a process that may have others."""

import asyncio
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
from tiny_archive import CODEC, as_mar, change_manifest

from torchserve_neuron_lstm.archiver_ext.archive.file_list import write_list
from torchserve_neuron_lstm.bucketing.shapes import BucketGrid
from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest
from torchserve_neuron_lstm.handlers.metrics import BatchMetrics
from torchserve_neuron_lstm.handlers.neuron_lstm import check_folder
from torchserve_neuron_lstm.hosts.served_archive import ArchiveSettings, ServedArchive
from torchserve_neuron_lstm.inference import reader
from torchserve_neuron_lstm.inference.errors import ArchiveError
from torchserve_neuron_lstm.inference.isolated_modules import IsolatedModules
from torchserve_neuron_lstm.inference.reader import ArchiveReader


def settings(archive: Path) -> ArchiveSettings:
    return ArchiveSettings(str(archive), "sums", threads=1, most_waiting=100)


def count(batch: BatchMetrics, grid: BucketGrid) -> None:
    pass


def test_an_archive_is_loaded_while_code_of_another_runs(archive: Path, tmp_path: Path) -> None:
    with IsolatedModules(tmp_path).imported(), ThreadPoolExecutor(1) as threads:
        threads.submit(ServedArchive, settings(archive), count).result(60).release()


def test_an_archive_that_was_changed_or_is_not_there_is_not_served(archive: Path, tmp_path: Path) -> None:
    """Every file is compared with the list, as by TorchServe's entry point."""
    changed = Path(shutil.copytree(archive, tmp_path / "changed"))
    (changed / "codec_of_tests.py").write_text("raise SystemExit")

    with pytest.raises(ArchiveError, match=r"codec_of_tests\.py was changed"):
        ServedArchive(settings(changed), count)
    with pytest.raises(ArchiveError, match="there is no archive"):
        ServedArchive(settings(tmp_path / "none.mar"), count)


def test_the_version_is_that_of_the_files_that_were_checked(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator may move another archive into its place meanwhile."""
    file, other = as_mar(archive, tmp_path / "sums.mar"), Path(shutil.copytree(archive, tmp_path / "other"))
    manifest = other / "MAR-INF" / "MANIFEST.json"
    manifest.write_text(manifest.read_text().replace('"2.0"', '"3.0"'))
    write_list(other)

    def checked(*given: str) -> None:
        check_folder(*given)
        as_mar(other, file)

    monkeypatch.setattr(reader, "check_folder", checked)
    served = ServedArchive(settings(file), count)
    served.release()

    assert (served.version, ArchiveReader(file).model_version()) == ("2.0", "3.0")


def test_archives_of_one_replica_have_modules_of_their_own(archive: Path, tmp_path: Path) -> None:
    async def ask(served: list[ServedArchive]) -> list[bytes]:
        answers = [await one.respond(RawRequest({"body": b"1"}, {"Content-Type": "text/plain"})) for one in served]
        for one in served:
            await one.close()
        return [bytes(answer.body) for answer in answers]

    served = []
    for number in (b"1", b"2"):
        copy = Path(shutil.copytree(archive, tmp_path / number.decode()))
        for name in ("words_of_codec", "late_words_of_codec"):
            (copy / f"{name}.py").write_bytes(b"WORD = b'%b'\n" % number)
        code = CODEC.replace("return b", "from late_words_of_codec import WORD; return words_of_codec.WORD + WORD; b")
        (copy / "codec_of_tests.py").write_text(f"import words_of_codec\n{code}")
        write_list(change_manifest(copy, codec="codec_of_tests:Codec"))
        served.append(ServedArchive(settings(copy), count))

    assert asyncio.run(ask(served)) == [b"11", b"22"]


def test_an_archive_that_does_not_fit_into_memory_is_not_served(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = as_mar(archive, tmp_path / "sums.mar")
    (temporary := tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setattr("torchserve_neuron_lstm.hosts.served_archive.open_service", Mock(side_effect=MemoryError))

    with pytest.raises(ArchiveError, match=r"sums\.mar: out of memory"):
        ServedArchive(settings(file), count)
    assert list(temporary.iterdir()) == []
