"""Services that requests are sent to, each with a good request for every batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from memory_store import Clock, MemoryStore

from torchserve_neuron_lstm.bucketing.shapes import TensorSpec
from torchserve_neuron_lstm.config.manifest import Manifest
from torchserve_neuron_lstm.handlers.formats import make_codec
from torchserve_neuron_lstm.handlers.formats.custom import UserCodec
from torchserve_neuron_lstm.handlers.formats.labels import Labels
from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest
from torchserve_neuron_lstm.handlers.formats.request import ModelIdentity
from torchserve_neuron_lstm.handlers.service import Service
from torchserve_neuron_lstm.handlers.streaming.sessions import Sessions
from torchserve_neuron_lstm.handlers.streaming.store_sessions import StoreSessions
from torchserve_neuron_lstm.handlers.streaming.token_sessions import TokenSessions
from torchserve_neuron_lstm.sessions.settings import Limits

from .manifests import (
    CLASSES,
    COSTS,
    FRAMES,
    IDS,
    KIND,
    LIMITS,
    MEANS,
    STATE_ID,
    TIME_FIRST,
    make_manifest,
    session_manifest,
)
from .model import BoundedSums

IDENTITY = ModelIdentity("model", "1.0")
KEY = bytes(range(32))
"""The key that signs session tokens."""
NOW = 1_700_000_000.0
"""The time of every clock: an input does the same whenever it is sent."""
MOST_RESPONSE_BYTES = 4096
OPEN_SESSION = "open"
"""A session that is open before each request."""


@dataclass(frozen=True)
class ServiceKind:
    """A service that begins each batch in the same state."""

    service: Service
    good: RawRequest
    """A request that is answered with 200."""
    reset: Callable[[], None]
    """A function that brings back the state in which the service began."""


class WordsCodec:
    """A user's codec: numbers as words, answered as words."""

    content_type = "text/plain"

    def decode(self, body: bytes, content_type: str) -> object:
        """Read one sequence from a text of numbers."""
        return {"ids": [int(word) for word in body.decode().split()]}

    def encode(self, outputs: Mapping[str, torch.Tensor], inputs: Mapping[str, torch.Tensor]) -> object:
        """Write the outputs of a sequence as bytes, a single one as JSON; two are not taken."""
        if len(outputs["means"]) == 1:
            return outputs
        if len(outputs["means"]) == 2:
            raise ValueError("two numbers are no text")
        return " ".join(f"{value:.3f}" for value in outputs["means"].tolist()).encode()


class LinesCodec(WordsCodec):
    """A user's codec: one sequence in each line of the body."""

    def decode(self, body: bytes, content_type: str) -> object:
        """Read a sequence from each line."""
        return [super(LinesCodec, self).decode(line, content_type) for line in body.splitlines()]

    def encode(self, outputs: Mapping[str, torch.Tensor], inputs: Mapping[str, torch.Tensor]) -> object:
        """Return tensors, as JSON has them."""
        return {**outputs, "ids": inputs["ids"]}


KINDS: Mapping[str, Callable[[], ServiceKind]] = {
    "ids": lambda: _whole(make_manifest(IDS)),
    "two_inputs": lambda: _whole(make_manifest(IDS, FRAMES, outputs=(MEANS, CLASSES))),
    "named_inputs": lambda: _whole(
        make_manifest(TensorSpec("inputs", "float32", ("batch", "time", 2)), overflow="truncate")
    ),
    "exact_lengths": lambda: _whole(
        make_manifest(TensorSpec("instances", "int64", ("batch", "time")), padding="exact_lengths", shortest=2)
    ),
    "dtypes": lambda: _whole(make_manifest(*TIME_FIRST)),
    "rank_four": lambda: _whole(make_manifest(TensorSpec("grid", "float64", ("batch", "time", 2, 2)))),
    "time_last": lambda: _whole(make_manifest(TensorSpec("bands", "float32", ("batch", 2, 2, "time")))),
    "static": lambda: _whole(make_manifest(KIND, outputs=(CLASSES,))),
    "costly": lambda: _whole(make_manifest(IDS, costs=COSTS, limits=LIMITS._replace(milliseconds=25.0))),
    "narrow": lambda: _whole(make_manifest(TensorSpec("levels", "int8", ("batch", "time")))),
    "labels": lambda: _whole(make_manifest(IDS, outputs=(CLASSES,)), labels=Labels(("no", "maybe", "yes"))),
    "codec": lambda: _whole(make_manifest(IDS), user_codec=WordsCodec()),
    "codec_lines": lambda: _whole(make_manifest(IDS), user_codec=LinesCodec()),
    "sessions": lambda: _stored(session_manifest(), sessions=100),
    "few_sessions": lambda: _stored(session_manifest(client_header="x-client"), sessions=2, bytes=4096),
    "tokens": lambda: _signed(session_manifest(store="client", key_env="KEY")),
}
KIND_NAMES = tuple(KINDS)
"""Makers of the services by name; the first is that of an input that names none."""


@cache
def kind_of(name: str) -> ServiceKind:
    """Return the service of a name of `KINDS`."""
    return KINDS[name]()


def _whole(manifest: Manifest, labels: Labels | None = None, user_codec: UserCodec | None = None) -> ServiceKind:
    good: object = "1 2 3 4" if user_codec else json.dumps(good_inputs(manifest))
    row = RawRequest({"body": bytearray(str(good).encode())})
    return ServiceKind(_service(manifest, None, labels, user_codec), row, lambda: None)


def _stored(manifest: Manifest, **limits: float) -> ServiceKind:
    given: dict[str, Any] = {"sessions": 100, "bytes": 10**6, "idle_seconds": 600.0, "client_sessions": 2, **limits}
    store = MemoryStore(Limits(**given), Clock())
    service = _service(manifest, StoreSessions(store))
    service.handle([_of_session(OPEN_SESSION, [1, 2])])
    begin = dict(store.entries)

    def reset() -> None:
        store.entries.clear()
        store.entries.update(begin)

    return ServiceKind(service, _of_session("good", [1, 2, 3, 4]), reset)


def _signed(manifest: Manifest) -> ServiceKind:
    sessions = TokenSessions((KEY, bytes(32)), bytes.fromhex(STATE_ID), 4, IDENTITY.name, 60.0, lambda: NOW)
    return ServiceKind(_service(manifest, sessions), _of_session("good", [1, 2, 3, 4]), lambda: None)


def _of_session(name: str, ids: list[int]) -> RawRequest:
    body = json.dumps({"ids": ids, "session": name, "start": True})
    return RawRequest({"body": bytearray(body.encode())}, {"x-client": name})


def _service(
    manifest: Manifest, sessions: Sessions | None, labels: Labels | None = None, user_codec: UserCodec | None = None
) -> Service:
    return Service(
        BoundedSums(manifest),
        make_codec(manifest, IDENTITY, labels, user_codec, MOST_RESPONSE_BYTES),
        {"described": True},
        MOST_RESPONSE_BYTES,
        clock=lambda: 0.0,
        unix_clock=lambda: NOW,
        sessions=sessions,
    )


def good_inputs(manifest: Manifest) -> dict[str, Any]:
    """Return nested lists for each input of a sequence of four timesteps."""
    return {spec.name: _nested(spec, spec.item_sizes(4)) for spec in manifest.inputs}


def _nested(spec: TensorSpec, sizes: tuple[int, ...]) -> Any:
    if sizes:
        return [_nested(spec, sizes[1:]) for _ in range(sizes[0])]
    return True if spec.dtype == "bool" else 1
