"""`neuron-lstm sessions`: the open sessions that an archive's store holds on this host."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import PackagingError, refusing
from . import Commands, add_archive, print_json, print_line

if TYPE_CHECKING:
    from ...sessions.settings import SessionSettings
    from ...sessions.store import StoreTotals


@dataclass(frozen=True)
class OpenSessions:
    """The sessions of one model in a store."""

    model: str
    where: str
    """Path of the file, or URL of the server."""
    settings: SessionSettings
    totals: StoreTotals


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "sessions",
        help="count the open sessions of a streaming archive",
        description="Count the open sessions that an archive's store holds, on the host that serves it. Run it as the "
        "user who runs the server, with the server's environment: the place of the store depends on both.",
    )
    add_archive(command)
    command.add_argument("--name", metavar="MODEL", help="model name in TorchServe (default: the archive's own)")
    command.add_argument("--json", action="store_true", help="print the figures as JSON")
    command.set_defaults(run=_sessions)


def _sessions(options: argparse.Namespace) -> None:
    found = count_sessions(options.archive, options.name, os.environ)
    if options.json:
        print_json(to_json(found))
    else:
        print_line(summarize(found))


def count_sessions(archive: Path, name: str | None, environment: Mapping[str, str]) -> OpenSessions:
    """Count the sessions in the store of `archive`, served as `name`; None: under the archive's own name.

    This changes nothing: a missing file is not created.

    Raises `PackagingError`: the archive has no sessions, its clients keep them, or the store cannot be read.
    Raises `ArchiveError`: the archive is not as it was packaged.
    """
    from ...handlers.streaming.open_sessions import open_store
    from ...inference.errors import NamelessArchiveError
    from ...inference.reader import ArchiveReader
    from ...sessions.sqlite.store import SqliteStore
    from ...sessions.store import StoreTotals, StoreUnavailableError

    reader = ArchiveReader(archive)
    settings = reader.manifest().streaming
    if settings is None:
        raise PackagingError(f"{archive} has no sessions: it was packaged without `streaming`")
    if settings.store == "client":
        raise PackagingError(f"{archive} keeps no sessions: with `store: client` each client keeps its own")
    with refusing(NamelessArchiveError, after="; give --name"):
        model = reader.model_name() if name is None else name
    with reader.checked() as folder:  # the settings name a file, or a server that gets a password
        if ArchiveReader(folder).manifest().streaming != settings:
            raise PackagingError(f"{archive} was changed while it was read: run the command again")
    with refusing((StoreUnavailableError, OSError, ValueError, RuntimeError)):
        store = open_store(settings, model, environment)
        if isinstance(store, SqliteStore):
            totals = store.totals() if store.file.exists() else StoreTotals(0, 0, None)
            return OpenSessions(model, str(store.file), settings, totals)
        assert settings.redis is not None  # the other kind of store
        return OpenSessions(model, settings.redis.url, settings, store.totals())


def summarize(found: OpenSessions) -> str:
    """Describe the sessions for people.

    >>> from torchserve_neuron_lstm.config.streaming import StreamingConfig
    >>> from torchserve_neuron_lstm.sessions.store import StoreTotals
    >>> settings = StreamingConfig().settings("0" * 32)
    >>> print(summarize(OpenSessions("tagger", "/s/tagger.sessions", settings, StoreTotals(2, 8192, 61.4))))
    tagger: 2 of 10000 sessions open, 8 KB of 1.0 GB, the oldest was last used 61 s ago
    in /s/tagger.sessions
    """
    from ..report import human_size

    totals, limits = found.totals, found.settings
    oldest = totals.oldest_seconds
    idle = "" if oldest is None else f", the oldest was last used {oldest:.0f} s ago"
    room = f"{human_size(totals.bytes)} of {human_size(limits.max_bytes)}"
    return f"{found.model}: {totals.sessions} of {limits.max_sessions} sessions open, {room}{idle}\nin {found.where}"


def to_json(found: OpenSessions) -> dict[str, Any]:
    """Return the figures for machines; `oldest_seconds` is null where no session is open."""
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
