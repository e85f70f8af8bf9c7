"""An archive that this host cannot run: a server that has it is live, and reports what is missing."""

from __future__ import annotations

from pathlib import Path

from ..handlers.formats.json_text import to_json
from ..handlers.formats.raw_request import RawRequest
from ..handlers.responses import RawResponse
from ..inference.reader import ArchiveReader
from .served_archive import ArchiveSettings


class UnloadedArchive:
    """An archive that was not loaded, for `reason`. Its metadata are there; its model is not ready."""

    def __init__(self, settings: ArchiveSettings, reason: str) -> None:
        """Read the archive's manifest.

        Raises:
            ArchiveError: there is no such archive, or it is damaged.
        """
        reader = ArchiveReader(Path(settings.archive))
        self.name = settings.name
        self.version = reader.model_version()
        self.manifest = reader.manifest()
        self._reason = reason

    async def respond(self, request: RawRequest) -> RawResponse:
        """Refuse the request with 503: another replica may have the model."""
        message = f"model {self.name} is not ready: {self._reason}"
        return RawResponse(503, to_json({"code": 503, "type": "ModelNotReady", "message": message, "error": message}))

    async def readiness(self) -> dict[str, object]:
        """Return that the model is not ready, and the reason."""
        return {"ready": False, "reason": self._reason}

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""
