"""A service of sessions over a fake model, and the requests and answers of its tests."""

import json
from typing import Any

from fake_streaming_model import FakeStreamingModel, streaming_manifest
from memory_store import Clock, MemoryStore

from torchserve_neuron_lstm.handlers.formats import make_codec
from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest
from torchserve_neuron_lstm.handlers.formats.request import ModelIdentity
from torchserve_neuron_lstm.handlers.responses import RawResponse
from torchserve_neuron_lstm.handlers.service import Service
from torchserve_neuron_lstm.handlers.streaming.state import SessionSource
from torchserve_neuron_lstm.handlers.streaming.store_sessions import StoreSessions
from torchserve_neuron_lstm.sessions.settings import Limits

IDENTITY = ModelIdentity("model", "1.0")
ID, START, END, STEP, TOKEN = (f"ts_request_sequence_{name}" for name in ("id", "start", "end", "step", "token"))


def make_store(**limits: float) -> MemoryStore:
    given: dict[str, Any] = {"sessions": 100, "bytes": 10**6, "idle_seconds": 600.0, **limits}
    return MemoryStore(Limits(**given), Clock())


def make_service(sessions: SessionSource | None = None, **facts: Any) -> Service:
    manifest = streaming_manifest(**facts.pop("manifest", {}))
    codec = make_codec(manifest, IDENTITY)
    return Service(FakeStreamingModel(manifest), codec, sessions=sessions or StoreSessions(make_store()), **facts)


def piece(ids: object, **headers: str) -> RawRequest:
    """One chunk, with its fields in headers."""
    return RawRequest({"body": ids}, {f"ts_request_sequence_{name}": value for name, value in headers.items()})


def told(response: RawResponse) -> tuple[int, Any]:
    """Status and JSON of a response."""
    return response.status, json.loads(response.body)


def ask(service: Service, *rows: RawRequest) -> list[tuple[int, Any]]:
    """Status and JSON of the answers to a batch."""
    return [told(response) for response in service.handle(rows)]
