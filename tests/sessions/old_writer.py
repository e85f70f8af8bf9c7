"""A process that uses stores by the code of an old archive.

It is run as `old_writer.py ARCHIVE WHERE ACTION NAME...`; WHERE is a folder, or the address of a server. The archive's
code is all that it imports of this software.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def open_store(archive: str, where: str) -> Any:
    """Open the store of the model `tagger` as the archive does."""
    sys.path.insert(0, archive)
    store = import_module("torchserve_neuron_lstm.sessions.store")
    limits = store.Limits(sessions=1000, bytes=1_000_000, idle_seconds=900.0)
    if where.startswith("redis://"):
        settings = import_module("torchserve_neuron_lstm.sessions.redis_client").RedisSettings(where)
        return import_module("torchserve_neuron_lstm.sessions.redis").RedisStore(settings, "tagger", limits)
    return import_module("torchserve_neuron_lstm.sessions.disk").DiskStore(Path(where), "tagger", limits)


def main() -> None:
    """Write sessions, or say what is stored of each."""
    archive, where, action, *names = sys.argv[1:]
    store = open_store(archive, where)
    found = store.read(names)
    if action == "write":
        change = import_module("torchserve_neuron_lstm.sessions.store").Change
        outcomes = store.write(
            [change(name, b"by the old code", one and one.revision) for name, one in zip(names, found, strict=True)]
        )
        sys.stdout.write(" ".join(type(outcome).__name__ for outcome in outcomes))
    else:
        sys.stdout.write(" ".join("none" if one is None else one.record.decode() for one in found))
    store.close()


if __name__ == "__main__":
    main()
