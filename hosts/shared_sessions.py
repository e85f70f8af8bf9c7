"""Check that replicas on several machines share the sessions of a model."""

from __future__ import annotations

from ..config.manifest import Manifest
from ..inference.errors import ArchiveError


def check_shared_sessions(name: str, manifest: Manifest) -> None:
    """Refuse a model whose sessions, or the key of their tokens, are on the disk of one machine.

    Raises `ArchiveError`: the message says what to change.
    """
    settings = manifest.streaming
    if settings is None or settings.store == "redis":
        return
    if settings.store == "disk":
        raise ArchiveError(
            f"model {name} keeps its sessions on the disk of one machine (store: disk), and its replicas may be on "
            "several: package it with store: redis, or with store: client and key_env"
        )
    if settings.key_env is None:
        raise ArchiveError(
            f"model {name} signs its session tokens with a key on the disk of one machine, and its replicas may be "
            "on several: package it with key_env, the environment variable that has the key on each of them"
        )
