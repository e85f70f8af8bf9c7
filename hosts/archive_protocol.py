"""An archive as the protocols see it."""

from __future__ import annotations

from typing import Protocol

from ..config.manifest import Manifest
from ..handlers.formats.raw_request import RawRequest
from ..handlers.responses import RawResponse


class HostedArchive(Protocol):
    """A model by its name and version, loaded or not."""

    @property
    def name(self) -> str:
        """The name under which the model is served."""

    @property
    def version(self) -> str:
        """The version of the archive."""

    @property
    def manifest(self) -> Manifest:
        """The archive's manifest."""

    async def respond(self, request: RawRequest) -> RawResponse:
        """Return the response to one request.

        Raises:
            QueueFullError: too many requests wait.
        """

    async def readiness(self) -> dict[str, object]:
        """Return whether the model is `ready`, and why."""

    async def close(self) -> None:
        """Answer the waiting requests, and release the programs."""
