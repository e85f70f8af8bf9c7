"""`neuron-lstm sessions`: the open sessions that an archive's store holds on this host."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import PackagingError, refusing
from . import Commands, add_archive, print_json


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "sessions",
        help="count the open sessions of a streaming archive",
        description="Count the open sessions that an archive's store holds, on the host that serves it, and print them "
        "and their limits as JSON. Run it as the user who runs the server, with the server's environment: the place of "
        "the store depends on both.",
    )
    add_archive(command)
    command.add_argument("--name", metavar="MODEL", help="model name in TorchServe (default: the archive's own)")
    command.set_defaults(run=lambda options: print_json(count_sessions(options.archive, options.name, os.environ)))


def count_sessions(archive: Path, name: str | None, environment: Mapping[str, str]) -> dict[str, Any]:
    """Count the sessions in the store of `archive`, served as `name`; None: under the archive's own name.

    This changes nothing: a missing file is not created. `where` is the path of the file, or the URL of the server;
    `oldest_seconds` is null where no session is open.

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
        file = store.file if isinstance(store, SqliteStore) else None
        totals = StoreTotals(0, 0, None) if file is not None and not file.exists() else store.totals()
    return {
        "model": model,
        "store": settings.store,
        "where": str(file or (settings.redis and settings.redis.url)),
        **totals._asdict(),
        **{limit: getattr(settings, limit) for limit in ("max_sessions", "max_bytes", "idle_seconds")},
    }
