"""What one row gets."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from .rows import JSON

_NONE: Mapping[str, str] = MappingProxyType({})


class RawResponse(NamedTuple):
    """Status, body and headers of a response."""

    status: int
    body: bytes
    content_type: str = JSON
    headers: Mapping[str, str] = _NONE
    """Beside the content type."""
    repeated: bool = False
    """It was given before, to the same piece of a session."""
