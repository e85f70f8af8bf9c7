import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from printed import Capture, printed, refusal
from redis_cluster import running_cluster
from redis_server import RedisServer, one_and_others_long, running, server_programs
from streaming_archive import streaming_manifest, write_streaming_archive
from tiny_archive import add_serving_half

from torchserve_neuron_lstm.archiver_ext import cli
from torchserve_neuron_lstm.archiver_ext.archive.file_list import write_list
from torchserve_neuron_lstm.config.streaming import StreamingConfig
from torchserve_neuron_lstm.sessions.redis.store import RedisStore
from torchserve_neuron_lstm.sessions.settings import Limits, RedisSettings, SessionSettings
from torchserve_neuron_lstm.sessions.sqlite.store import SqliteStore
from torchserve_neuron_lstm.sessions.store import RecordUpdate

Packaged = Callable[..., str]
LIMITS = Limits(sessions=3, bytes=100_000, idle_seconds=60)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "kept"
    monkeypatch.setenv("NEURON_LSTM_SESSIONS", str(directory))
    return directory


@pytest.fixture
def packaged(tmp_path: Path) -> Packaged:
    def package(**settings: object) -> str:
        config = StreamingConfig.model_validate(settings)
        return archive_of(tmp_path / "tiny", config.settings("0" * 32))

    return package


def archive_of(folder: Path, settings: SessionSettings | None) -> str:
    """Write an archive whose files are as its list says."""
    add_serving_half(write_streaming_archive(folder, streaming_manifest(settings)))
    write_list(folder)
    return str(folder)


@pytest.fixture
def archive(packaged: Packaged) -> str:
    return packaged(max_sessions=3, max_bytes=100_000, idle_seconds=60)


def open_in(directory: Path, model: str, *names: str) -> None:
    store = SqliteStore(directory, model, LIMITS)
    store.write([RecordUpdate(name, b"x" * 100, None) for name in names])
    store.close()


def told(capsys: Capture, *arguments: str) -> dict[str, object]:
    figures: dict[str, object] = json.loads(printed(capsys, "sessions", *arguments))
    return figures


def test_sessions_of_the_archives_name_are_counted_and_of_another_that_the_server_sets(
    archive: str, directory: Path, capsys: Capture
) -> None:
    open_in(directory, "tiny", "a", "b")
    open_in(directory, "other", "a", "b", "c")
    figures = told(capsys, archive)

    waits = figures.pop("oldest_seconds")
    assert isinstance(waits, float)
    assert 0 <= waits < 60
    kept = {"model": "tiny", "store": "disk", "where": str(directory / "tiny.sessions"), "sessions": 2, "bytes": 200}
    assert figures == {**kept, "max_sessions": 3, "max_bytes": 100_000, "idle_seconds": 60.0}
    assert told(capsys, archive, "--name", "other")["sessions"] == 3


def test_reading_creates_no_store(archive: str, directory: Path, capsys: Capture) -> None:
    """The reader may be a user whose files the server could not write."""
    figures = told(capsys, archive)

    assert (figures["sessions"], figures["bytes"], figures["oldest_seconds"]) == (0, 0, None)
    assert not directory.exists()


def test_an_archive_without_sessions_and_one_whose_clients_keep_them_say_so(
    packaged: Packaged, tmp_path: Path, capsys: Capture
) -> None:
    archive = archive_of(tmp_path / "none", None)

    assert "has no sessions: it was packaged without `streaming`" in refusal(capsys, "sessions", archive)
    told = refusal(capsys, "sessions", packaged(store="client"))
    assert "keeps no sessions: with `store: client` each client keeps its own" in told


def test_an_archive_without_a_name_asks_for_one(archive: str, directory: Path, capsys: Capture) -> None:
    (Path(archive) / "MAR-INF" / "MANIFEST.json").write_text('{"model": {}}')
    write_list(Path(archive))

    assert "give --name" in refusal(capsys, "sessions", archive)
    assert told(capsys, archive, "--name", "tiny")["sessions"] == 0


def test_a_store_that_cannot_be_read_is_a_refusal(archive: str, directory: Path, capsys: Capture) -> None:
    directory.mkdir()
    (directory / "tiny.sessions").write_bytes(b"no database " * 100)

    error = refusal(capsys, "sessions", archive)
    assert error.startswith("error: the session store ")
    assert "Traceback" not in error


@pytest.mark.parametrize("program", one_and_others_long(server_programs()))
def test_a_server_is_asked_over_the_network(packaged: Packaged, program: str, tmp_path: Path, capsys: Capture) -> None:
    with running(RedisServer(server_programs()[program], tmp_path)) as server:
        store = RedisStore(RedisSettings(server.url, timeout_seconds=30.0), "tiny", LIMITS)
        store.write([RecordUpdate("a", b"x" * 100, None)])
        store.close()
        figures = told(capsys, packaged(store="redis", redis={"url": server.url, "timeout_seconds": 30.0}))

    assert (figures["store"], figures["where"]) == ("redis", server.url)
    assert (figures["sessions"], figures["bytes"]) == (1, 100)


@pytest.mark.ci
@pytest.mark.parametrize("program", one_and_others_long(server_programs()))
def test_sessions_of_all_shards_are_counted(packaged: Packaged, program: str, tmp_path: Path, capsys: Capture) -> None:
    """A sum without one of them would be wrong, so all must be there."""
    with running_cluster(server_programs()[program], tmp_path) as cluster:
        settings = RedisSettings(cluster.url, timeout_seconds=2.0, cluster=True)
        store = RedisStore(settings, "tiny", replace(LIMITS, sessions=16_000, bytes=10**8))
        store.write([RecordUpdate(f"{number}", b"x" * 100, None) for number in range(100)])
        store.close()
        archive = packaged(store="redis", redis={"url": cluster.url, "timeout_seconds": 2.0, "cluster": True})
        figures = told(capsys, archive)
        cluster.servers[2].kill()

        assert cli.main(["sessions", archive]) == 1
    assert (figures["where"], figures["sessions"], figures["bytes"]) == (cluster.url, 100, 10_000)
    assert capsys.readouterr().err.startswith(f"error: the session store {cluster.servers[2].url}/0 cannot be used")


def test_a_server_that_is_not_there_is_a_refusal(packaged: Packaged, capsys: Capture) -> None:
    told = refusal(capsys, "sessions", packaged(store="redis", redis={"url": "redis://127.0.0.1:1/0"}))
    assert "the session store redis://127.0.0.1:1/0 cannot be used" in told


def test_the_server_that_a_changed_archive_names_gets_no_password(packaged: Packaged, capsys: Capture) -> None:
    """A manifest may name any server, and any variable of the environment as the password."""
    archive = packaged(store="redis", redis={"url": "redis://localhost:1", "password_env": "PATH"})
    manifest = Path(archive) / "variants.json"
    manifest.write_text(manifest.read_text().replace("localhost:1", "localhost:2"))

    assert "variants.json was changed" in refusal(capsys, "sessions", archive)
