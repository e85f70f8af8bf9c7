"""The service of an archive in the user's own process.

It is that of a server, without a server's bounds of time and size.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace

from ..handlers.formats import Codec
from ..handlers.runtime.loader import LoadedArchive
from ..handlers.service import Service
from ..handlers.streaming.state import SessionSource


def make_service(loaded: LoadedArchive, codec: Codec, sessions: SessionSource | None = None) -> Service:
    """Make the service; without `sessions`, every request is a whole sequence."""
    manifest = loaded.manifest
    unhurried = manifest.limits._replace(milliseconds=None, timeout_ms=None)
    return Service(
        replace(loaded, manifest=replace(manifest, limits=unhurried)),
        codec,
        max_response_bytes=sys.maxsize,
        response_timeout_ms=math.inf,
        sessions=sessions,
        wake=loaded.wake,
    )
