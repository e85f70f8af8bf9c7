"""Bounds of one request, which hold before any work is done for it.

Standard library only.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

MAX_REQUEST_BYTES = 6_553_500
"""TorchServe's default of `max_request_size`."""


class RequestLimits(NamedTuple):
    """Bounds of one request."""

    sequences: int = 1024
    """A client with more sends several requests, which share the server fairly with others'."""
    timesteps: int = 1_000_000
    """Sum over all sequences."""
    body_bytes: int = MAX_REQUEST_BYTES
    milliseconds: Optional[float] = None
    """Estimated by the measured costs. None: a tenth of TorchServe's `responseTimeout`."""
    timeout_ms: Optional[float] = None
    """Deadline of a request that names none, from its arrival at the worker on. None: `responseTimeout`."""
