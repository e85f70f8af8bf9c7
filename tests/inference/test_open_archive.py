"""Archives in the user's own process: the model's answers, in order, without a trace in the process."""

import io
import pickle
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from fake_model import GRID
from tiny_archive import VOCABULARY, as_mar, make_archive, make_model

from torchserve_neuron_lstm import open_archive
from torchserve_neuron_lstm.archiver_ext.archive.file_list import write_list
from torchserve_neuron_lstm.bucketing.shapes import TensorSpec
from torchserve_neuron_lstm.inference.errors import ArchiveError
from torchserve_neuron_lstm.inference.open_archive import OpenArchive
from torchserve_neuron_lstm.inference.values import InvalidSequence, write_one

LONGEST = GRID.lengths[-1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_archive(tmp_path_factory.mktemp("archives") / "tiny")


@pytest.fixture(scope="module")
def opened(folder: Path) -> Iterator[OpenArchive]:
    with open_archive(folder, threads=1) as model:
        yield model


def sequences(count: int) -> list[list[int]]:
    return [[(3 * step + row) % VOCABULARY for step in range((5 * row) % LONGEST + 1)] for row in range(count)]


@torch.no_grad()
def expected(ids: list[int]) -> torch.Tensor:
    answer: torch.Tensor = make_model()(torch.tensor([ids]), torch.tensor([len(ids)]))[0][0]
    return answer


@pytest.mark.parametrize("count", [0, 1, 7, 3000])
def test_any_number_of_sequences_is_answered_in_order(opened: OpenArchive, count: int) -> None:
    asked = sequences(count)
    answers = opened.predict(asked)

    assert len(answers) == count
    for ids, answer in list(zip(asked, answers, strict=True))[:: max(1, count // 50)]:
        torch.testing.assert_close(torch.tensor(answer), expected(ids), atol=1e-5, rtol=1e-5)


def test_numpy_has_outputs_of_bfloat16_as_float32() -> None:
    output, spec = torch.tensor([1.5, 2.25], dtype=torch.bfloat16), TensorSpec("y", "bfloat16", ("time",))

    assert np.array_equal(np.array([1.5, 2.25], np.float32), np.asarray(write_one([output], [spec], as_numpy=True)))


def test_a_sequence_may_be_written_in_any_of_these_forms(opened: OpenArchive) -> None:
    ids = [5, 17, 9]
    forms = [tuple(ids), np.array(ids, np.int32), torch.tensor(ids), {"ids": ids}, {"ids": np.array(ids)}]

    for form in forms:
        assert opened.predict([form]) == opened.predict([ids])


def test_arrays_come_out_on_request_and_are_the_callers_own(opened: OpenArchive) -> None:
    first, second = opened.predict([[1, 2], [3]], as_numpy=True)
    assert isinstance(first, np.ndarray)
    assert isinstance(second, np.ndarray)
    np.testing.assert_allclose(first, expected([1, 2]).numpy(), atol=1e-5)

    kept = second.copy()
    first[:] = 7.0
    assert np.array_equal(second, kept)
    assert not np.shares_memory(first, second)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([[1, 2]], "ids"),
        (["a"], "ids"),
        ([VOCABULARY] * 2, "ids"),
        ([0.5], "ids"),
        ([1] * (LONGEST + 1), str(LONGEST)),
        ({"words": [1]}, "the model's inputs are 'ids'; missing: 'ids'; unknown: 'words'"),
        (np.array(["a"]), "numpy"),
        ({}, "missing: 'ids'"),
    ],
    ids=["nested", "text", "beyond the vocabulary", "a float", "too long", "another name", "an array of text", "empty"],
)
def test_a_wrong_sequence_is_named_by_its_index(opened: OpenArchive, wrong: object, message: str) -> None:
    with pytest.raises(InvalidSequence) as refused:
        opened.predict([[1], wrong])

    assert str(refused.value).startswith("sequences[1]: ")
    assert message in str(refused.value)


def test_it_describes_itself_as_a_server_does(opened: OpenArchive) -> None:
    assert [spec.name for spec in opened.inputs] == ["ids"]
    assert [spec.name for spec in opened.outputs] == ["sums"]
    assert opened.describe()["buckets"] == {"batch": [1, 4], "length": [4, 8]}


def test_several_threads_ask_at_once(opened: OpenArchive) -> None:
    wanted = opened.predict(sequences(40))
    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda start: opened.predict(sequences(40)[start:]), range(6)))

    assert answers == [wanted[start:] for start in range(6)]


def test_a_mar_is_unpacked_and_deleted_again(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)
    archive = as_mar(folder, tmp_path / "tiny.mar")
    before = (Path.cwd(), list(sys.path), list(sys.meta_path))

    with open_archive(str(archive), threads=1) as model:
        assert len(list(temporary.iterdir())) == 1
        answer = model.predict([[4]])[0]
    torch.testing.assert_close(torch.tensor(answer), expected([4]))
    assert list(temporary.iterdir()) == []
    assert (Path.cwd(), list(sys.path), list(sys.meta_path)) == before
    files = [str(getattr(module, "__file__", "")) for module in list(sys.modules.values())]
    assert [file for file in files if file.startswith(str(temporary))] == []


def test_a_closed_archive_says_so(folder: Path) -> None:
    model = open_archive(folder, threads=1)
    answers = model.answer_lines(io.BytesIO(b"[1]\n" * 100))
    assert not next(answers).is_refusal
    model.close()
    model.close()

    with pytest.raises(ValueError, match="the archive is closed"):
        model.predict([[1]])
    with pytest.raises(ValueError, match="the archive is closed"):
        list(answers)


def test_a_changed_file_and_another_format_are_refused_with_the_way_out(folder: Path, tmp_path: Path) -> None:
    """The copy of the code in the archive would read another format, but is never run."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    next(copy.rglob("program.py")).write_text("", "utf-8")
    with pytest.raises(ArchiveError, match=r"program\.py was changed"):
        open_archive(copy)

    manifest = copy / "variants.json"
    manifest.write_text(manifest.read_text("utf-8").replace('"format": 1', '"format": 2'), "utf-8")
    write_list(copy)
    with pytest.raises(ArchiveError, match=r"has format 2, and this code reads format 1: .*package the model again"):
        open_archive(copy)


def test_an_archive_that_the_disk_has_no_room_for_is_not_unpacked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small file can say that it has terabytes of zeros."""
    archive = as_mar(folder, tmp_path / "tiny.mar")
    monkeypatch.setattr("torchserve_neuron_lstm.inference.reader.disk_usage", lambda _: Mock(free=1000))

    with pytest.raises(ArchiveError, match=r"tiny\.mar: its files have [\d,]+ bytes, and .* room for 1,000"):
        open_archive(archive)


@pytest.mark.parametrize(("error", "told"), [(MemoryError(), "out of memory"), (MemoryError("for 9 layers"), "for 9")])
def test_an_archive_that_does_not_fit_into_memory_is_refused(
    error: MemoryError, told: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise error

    (temporary := tmp_path / "temporary").mkdir()
    archive = as_mar(folder, tmp_path / "tiny.mar")
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setattr("torchserve_neuron_lstm.inference.open_archive.load_archive", full)

    with pytest.raises(ArchiveError, match=told):
        open_archive(archive)
    assert list(temporary.iterdir()) == []


def test_an_open_archive_is_not_sent_to_another_process(opened: OpenArchive) -> None:
    """A pool of spawned processes would send it; the message says what to send instead."""
    with pytest.raises(TypeError, match="send its path, and open it there"):
        pickle.dumps(opened)
