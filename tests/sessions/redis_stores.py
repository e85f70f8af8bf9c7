"""Makers of Redis servers and of stores on them, for one test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from memory_store import Clock
from redis_server import RedisServer

from torchserve_neuron_lstm.sessions.redis.store import RedisStore
from torchserve_neuron_lstm.sessions.settings import Limits, RedisSettings

MakeStore = Callable[..., RedisStore]
"""A function that makes a store for an address: `make(url, clock=None, limits=..., **settings)`."""
StartServer = Callable[..., RedisServer]
"""A function that starts a server with some options."""


@contextmanager
def made_stores(usual_limits: Limits, **usual: Any) -> Iterator[MakeStore]:
    with ExitStack() as opened:

        def make(url: str, clock: Clock | None = None, limits: Limits = usual_limits, **settings: Any) -> RedisStore:
            given = {"timeout_seconds": 30.0} | usual | settings  # a busy machine is slow now and then
            store = RedisStore(RedisSettings(url, **given), "tagger", limits, clock)
            opened.callback(store.close)
            return store

        yield make
