"""The stores that all promises are tried on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Protocol

import pytest
from memory_store import Clock, MemoryStore
from redis_server import RedisServer, running, server_programs

from torchserve_neuron_lstm.sessions.disk import DiskStore
from torchserve_neuron_lstm.sessions.redis import RedisStore
from torchserve_neuron_lstm.sessions.redis_client import RedisSettings
from torchserve_neuron_lstm.sessions.store import Limits, Store

PROGRAMS = server_programs()


class Place(Protocol):
    """Where stores lie: those of one model see the same sessions."""

    def __call__(self, limits: Limits, clock: Clock, model: str = "tagger") -> Store:
        """One more store object."""


Places = Callable[[], Place]
"""A new, empty one with every call."""


@pytest.fixture(params=["memory", "disk", *PROGRAMS], scope="session")
def places(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    """Of one kind of store after the other."""
    if request.param == "memory":
        yield _in_memory
    elif request.param == "disk":
        yield lambda: _on_disk(tmp_path_factory.mktemp("sessions"))
    else:
        with running(RedisServer(PROGRAMS[request.param], tmp_path_factory.mktemp("server"))) as server:
            yield _on_server(server)


def _in_memory() -> Place:
    stores: dict[str, MemoryStore] = {}

    def place(limits: Limits, clock: Clock, model: str = "tagger") -> Store:
        return stores.setdefault(model, MemoryStore(limits, clock))

    return place


def _on_disk(directory: Path) -> Place:
    return lambda limits, clock, model="tagger": DiskStore(directory, model, limits, clock)


def _on_server(server: RedisServer) -> Places:
    databases = count()

    def new() -> Place:
        # The server has 16 databases; each is empty when its turn comes again.
        database = next(databases) % 16
        with server.client() as client:
            client.select(database)
            client.flushdb()
        settings = RedisSettings(f"{server.url}/{database}")
        return lambda limits, clock, model="tagger": RedisStore(settings, model, limits, clock)

    return new
