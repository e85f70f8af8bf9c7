"""Sessions in the user's own process: chunks continue each other, here and over a restart."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from archiving import Source, archived, write_source
from forks import forked
from served_models import SCORER, scoring
from tiny_archive import make_archive

from torchserve_neuron_lstm import open_archive
from torchserve_neuron_lstm.inference.errors import ArchiveError
from torchserve_neuron_lstm.inference.model_session import SessionError
from torchserve_neuron_lstm.inference.values import InvalidSequence

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    folder = tmp_path_factory.mktemp("sessions")
    for store in ("disk", "client"):
        block = scoring("{batch: [1, 8], length: [16]}", "backend: eager", f"streaming: {{store: {store}}}")
        source = write_source(folder / store, SCORER, block)
        archived(source, store, folder)
    return source


@pytest.fixture(params=["disk", "client"])
def archive(request: pytest.FixtureRequest, source: Source, tmp_path: Path) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEURON_LSTM_SESSIONS", str(tmp_path / "sessions"))
        yield source.folder.parent / f"{request.param}.mar"


@torch.inference_mode()
def eager(source: Source, frames: np.ndarray) -> np.ndarray:
    scores: torch.Tensor = source.model(torch.from_numpy(frames)[None], torch.tensor([len(frames)]))[0]
    return scores.numpy()


def frames_of(length: int) -> np.ndarray:
    return np.random.default_rng(length).standard_normal((length, 3), np.float32)


def test_chunks_give_the_outputs_of_the_whole_sequence_and_a_wrong_one_changes_nothing(
    archive: Path, source: Source
) -> None:
    frames = frames_of(21)
    with open_archive(archive, threads=1) as model:
        session = model.session()
        assert (session.id, session.step) == (None, 0)
        parts: list[Any] = [session.send(frames[:4], as_numpy=True), session.send(frames[4:5].tolist())]
        assert session.id
        with pytest.raises(InvalidSequence, match="frames"):
            session.send([[1.0]])
        assert session.step == 5
        parts.append(session.send({"frames": torch.from_numpy(frames[5:])}, end=True))

    np.testing.assert_allclose(np.concatenate(parts), eager(source, frames), atol=1e-5)


def test_sessions_do_not_see_each_other_and_end_with_the_archive(archive: Path, source: Source) -> None:
    one, other = frames_of(6), frames_of(7)
    with open_archive(archive, threads=1) as model:
        first, second = model.session("first"), model.session("second")
        found = [first.send(one[:3]), second.send(other[:2]), first.send(one[3:]), second.send(other[2:])]

    np.testing.assert_allclose(np.concatenate([found[0], found[2]]), eager(source, one), atol=1e-5)
    np.testing.assert_allclose(np.concatenate([found[1], found[3]]), eager(source, other), atol=1e-5)
    with pytest.raises(ValueError, match="the archive is closed"):
        first.send(one)
    with pytest.raises(ValueError, match="the archive is closed"):
        model.session()


def test_a_stored_session_is_resumed_after_a_restart(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_LSTM_SESSIONS", str(tmp_path))
    archive, frames = source.folder.parent / "disk.mar", frames_of(9)
    with open_archive(archive, threads=1) as model:
        first = model.session("talk").send(frames[:4])
    with open_archive(archive, threads=1) as model:
        resumed = model.session("talk", resume=True)
        rest = resumed.send(frames[4:])
        assert resumed.step == 9
    np.testing.assert_allclose(np.concatenate([first, rest]), eager(source, frames), atol=1e-5)

    with open_archive(archive, threads=1, name="another") as model, pytest.raises(SessionError) as unknown:
        model.session("talk", resume=True).send(frames)
    assert unknown.value.kind == "SessionUnknown"


def test_an_ended_session_takes_nothing_more(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_LSTM_SESSIONS", str(tmp_path))
    with open_archive(source.folder.parent / "disk.mar", threads=1) as model:
        with_chunk, without = model.session("a"), model.session("b")
        with_chunk.send(frames_of(3))
        with_chunk.send(frames_of(3), end=True)
        without.send(frames_of(3))
        without.end()
        for ended in (with_chunk, without):
            with pytest.raises(SessionError, match="the session has ended") as refused:
                ended.send(frames_of(1))
            assert refused.value.kind == "SessionEnded"


@pytest.mark.parametrize("wrong", ["", "talk of Ada", 17, b"talk"])
def test_an_id_that_is_none_begins_no_other_session(archive: Path, wrong: Any) -> None:
    """A state would be lost without a word."""
    with open_archive(archive, threads=1) as model:
        for resume in (False, True):
            with pytest.raises(ValueError, match="a session id"):
                model.session(wrong, resume=resume)
        with pytest.raises(ValueError, match="to resume a session, give its id"):
            model.session(resume=True)


def test_chunks_of_several_threads_are_applied_one_after_the_other(archive: Path) -> None:
    with open_archive(archive, threads=1) as model:
        session, chunk = model.session("talk"), frames_of(2)
        with pytest.raises(SessionError, match="send a chunk first"):
            session.end()
        session.send(chunk)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(session.send, [chunk] * 8))

        assert session.step == 18


def test_an_archive_without_sessions_says_so(tmp_path: Path) -> None:
    archive = make_archive(tmp_path / "tiny")
    with open_archive(archive, threads=1) as model, pytest.raises(ArchiveError, match="sums has no sessions: package"):
        model.session()


def test_a_fork_and_its_parent_send_chunks_by_connections_of_their_own(archive: Path) -> None:
    """A database must not be used by a fork through its parent's connection: locks are not inherited."""
    frames = frames_of(3)
    with open_archive(archive, threads=1) as model:
        inherited, own = model.session(), model.session()
        inherited.send(frames)

        def send() -> None:
            for _ in range(20):
                inherited.send(frames)
            assert inherited.step == 63

        has_sent = forked(send)
        for _ in range(20):
            own.send(frames)
        assert has_sent()
        assert own.step == 60
        if archive.stem == "disk":
            resumed = model.session(inherited.id, resume=True)
            resumed.send(frames, end=True)
            assert resumed.step == 66
