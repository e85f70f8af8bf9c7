"""How many sessions an archive's store holds on this host, asked of the store that its workers use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...handlers.streaming.sessions import open_store
from ...sessions.settings import SessionSettings
from ...sessions.sqlite_store import SqliteStore
from ...sessions.store import StoreTotals, StoreUnavailableError
from ..archive.reader import ArchiveReader
from ..errors import PackagingError
from ..report import human_size


@dataclass(frozen=True)
class OpenSessions:
    """What a store holds of one model."""

    model: str
    where: str
    """The file, or the server's address."""
    settings: SessionSettings
    totals: StoreTotals


def count_sessions(archive: Path, name: str | None, environment: Mapping[str, str]) -> OpenSessions:
    """What the store of `archive`, served as `name`, holds; None: under the archive's own name.

    Looking changes nothing: where there is no file yet, none is made.

    Raises:
        PackagingError: the archive does not stream, its clients carry the sessions, or the store cannot be read.
    """
    reader = ArchiveReader(archive)
    settings = _settings(reader)
    model = reader.model_name() if name is None else name
    try:
        store = open_store(settings, model, environment)
        if isinstance(store, SqliteStore):
            there = store.file.exists()
            return OpenSessions(model, str(store.file), settings, store.totals() if there else StoreTotals(0, 0, None))
        assert settings.redis is not None  # the other kind of store
        return OpenSessions(model, settings.redis.url, settings, store.totals())
    except (StoreUnavailableError, OSError, ValueError) as error:
        raise PackagingError(str(error)) from error


def summarize(found: OpenSessions) -> str:
    """For people.

    >>> from torchserve_neuron_lstm.config.streaming import StreamingConfig
    >>> settings = StreamingConfig().settings("0" * 32)
    >>> print(summarize(OpenSessions("tagger", "/s/tagger.sessions", settings, StoreTotals(2, 8192, 61.4))))
    tagger: 2 of 10000 sessions open, 8 KB of 1.0 GB, none waits longer than 61 s for its next piece
    in /s/tagger.sessions
    """
    totals, limits = found.totals, found.settings
    oldest = totals.oldest_seconds
    waits = "" if oldest is None else f", none waits longer than {oldest:.0f} s for its next piece"
    room = f"{human_size(totals.bytes)} of {human_size(limits.max_bytes)}"
    return f"{found.model}: {totals.sessions} of {limits.max_sessions} sessions open, {room}{waits}\nin {found.where}"


def to_json(found: OpenSessions) -> dict[str, Any]:
    """The same for machines; `oldest_seconds` is null where no session is open."""
    return {
        "model": found.model,
        "store": found.settings.store,
        "where": found.where,
        "sessions": found.totals.sessions,
        "bytes": found.totals.bytes,
        "oldest_seconds": found.totals.oldest_seconds,
        "max_sessions": found.settings.max_sessions,
        "max_bytes": found.settings.max_bytes,
        "idle_seconds": found.settings.idle_seconds,
    }


def _settings(archive: ArchiveReader) -> SessionSettings:
    settings = archive.manifest().streaming
    if settings is None:
        raise PackagingError(
            f"{archive.path} does not stream: it was packaged without `streaming`, and keeps no sessions"
        )
    if settings.store == "client":
        raise PackagingError(f"{archive.path} keeps no sessions: with `store: client` each client keeps its own")
    return settings
