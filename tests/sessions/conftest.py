"""Fixtures: the stores on which the protocol is tested."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Protocol

import pytest
from memory_store import Clock, MemoryStore
from redis_server import RedisServer, running, server_programs

from torchserve_neuron_lstm.sessions.redis_store import RedisStore
from torchserve_neuron_lstm.sessions.settings import Limits, RedisSettings
from torchserve_neuron_lstm.sessions.sqlite_store import SqliteStore
from torchserve_neuron_lstm.sessions.store import Store

PROGRAMS = server_programs()


class Place(Protocol):
    """A place for stores: those of one model share their sessions."""

    def __call__(self, limits: Limits, clock: Clock, model: str = "tagger") -> Store:
        """Open another store object."""


Places = Callable[[], Place]
"""A function that makes a new, empty place with every call."""


@pytest.fixture(params=["memory", "disk", *PROGRAMS], scope="session")
def places(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    """Return a maker of places, for each kind of store. A new place closes the stores of the last one."""
    with ExitStack() as opened:
        if request.param == "memory":
            yield _in_memory
        elif request.param == "disk":
            yield lambda: _on_disk(tmp_path_factory.mktemp("sessions"), opened)
        else:
            server = RedisServer(PROGRAMS[request.param], tmp_path_factory.mktemp("server"))
            with running(server):
                yield lambda: _on_server(server, opened)


def _in_memory() -> Place:
    stores: dict[str, MemoryStore] = {}

    def place(limits: Limits, clock: Clock, model: str = "tagger") -> Store:
        return stores.setdefault(model, MemoryStore(limits, clock))

    return place


def _on_disk(directory: Path, opened: ExitStack) -> Place:
    opened.close()

    def place(limits: Limits, clock: Clock, model: str = "tagger") -> Store:
        return opened.enter_context(closing(SqliteStore(directory, model, limits, clock)))

    return place


def _on_server(server: RedisServer, opened: ExitStack) -> Place:
    opened.close()
    with server.client() as client:
        client.flushall()

    def place(limits: Limits, clock: Clock, model: str = "tagger") -> Store:
        settings = RedisSettings(server.url, timeout_seconds=30.0)  # a busy machine is slow now and then
        return opened.enter_context(closing(RedisStore(settings, model, limits, clock)))

    return place
