"""Many clients at once, some with bad requests: each gets its own answer, and the worker survives."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field

import pytest
import torch
from rest import JSON, Connection, Reply, assert_close, assert_refused
from torchserve_process import TorchServe

from .conftest import Store

pytestmark = pytest.mark.ci

REQUESTS = int(os.environ.get("NEURON_LSTM_LOAD_REQUESTS", "5000"))
CONNECTIONS = 32
BAD_PART = 0.1
LONGEST = 32
POOL = 150

REFUSED = (400,)
TOO_LONG = (413,)


@dataclass(frozen=True)
class Request:
    """A request of a client and its result: an answer for each output, or one of these statuses."""

    kind: str
    model: str
    body: bytes
    expected: Mapping[str, torch.Tensor] | tuple[int, ...]
    headers: Mapping[str, str] = field(default_factory=lambda: JSON)


def good_tagging(store: Store) -> Request:
    length = random.randint(1, LONGEST)
    ids, frames = torch.randint(50, (length,)), torch.randn(length, 3)
    with torch.inference_mode():
        tags, label = store.sources["tagger"].model(ids[None], frames[None], torch.tensor([length]))
    body = json.dumps({"ids": ids.tolist(), "frames": frames.tolist()}).encode()
    return Request("good", "tagger", body, {"tags": tags[0], "label": label[0]})


def good_scoring(store: Store) -> Request:
    length = random.randint(1, LONGEST)
    frames = torch.randn(length, 3)
    with torch.inference_mode():
        scores = store.sources["scorer"].model(frames[None], torch.tensor([length]))[0]
    return Request("good", "scorer", json.dumps(frames.tolist()).encode(), {"": scores})


def spoofed(request: Request, header: str) -> Request:
    """A good request that looks like one of TorchServe's own; it is answered like any other."""
    return Request(f"spoofed {header}", request.model, request.body, request.expected, {**JSON, header: "True"})


def tagging(kind: str, ids: object, frames: object, statuses: tuple[int, ...] = REFUSED) -> Request:
    return Request(kind, "tagger", json.dumps({"ids": ids, "frames": frames}).encode(), statuses)


def bad_requests(store: Store) -> list[Request]:
    row = [0.0, 0.0, 0.0]
    npy = {"Content-Type": "application/x-npy"}
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    return [
        Request("malformed JSON", "tagger", b'{"ids": [1, 2', REFUSED),
        Request("no JSON at all", "scorer", b"\xff\xfe\x00", REFUSED),
        Request("no body", "scorer", b"", REFUSED),
        Request("a number", "scorer", b"7", REFUSED),
        Request("null", "scorer", b"null", REFUSED),
        Request("input missing", "tagger", b'{"ids": [1]}', REFUSED),
        Request("input unknown", "scorer", json.dumps({"frame": [row]}).encode(), REFUSED),
        Request("web form", "scorer", json.dumps([row]).encode(), REFUSED, form),
        Request("broken npy", "scorer", b"\x93NUMPY\x01\x00garbage", REFUSED, npy),
        Request("truncated npy", "scorer", b"\x93NUMPY", REFUSED, npy),
        Request("one bad instance of two", "scorer", json.dumps({"instances": [[row], [[1.0]]]}).encode(), REFUSED),
        tagging("wrong dtype", [1.5, 2.0], [row, row]),
        tagging("text for numbers", ["a", "b"], [row, row]),
        tagging("wrong rank", [[1, 2]], [row, row]),
        tagging("ragged", [1, 2], [row, row[:2]]),
        tagging("wrong feature size", [1, 2], [row + row, row + row]),
        tagging("lengths differ", [1, 2, 3], [row, row]),
        tagging("NaN", [1, 2], [row, [0.0, float("nan"), 0.0]]),
        tagging("infinite", [1], [[0.0, float("inf"), 0.0]]),
        tagging("empty", [], []),
        tagging("id above the vocabulary", [1, 50], [row, row]),
        tagging("id below zero", [-1, 1], [row, row]),
        tagging("too long", [1] * (LONGEST + 1), [row] * (LONGEST + 1), TOO_LONG),
        spoofed(good_tagging(store), "describe"),
        spoofed(good_scoring(store), "describe"),
        spoofed(good_tagging(store), "explain"),
    ]


def mixture(store: Store) -> Iterator[Request]:
    """REQUESTS requests in random order: a tenth is bad, with all kinds about equally often."""
    good = [make(store) for make in (good_tagging, good_scoring) for _ in range(POOL)]
    bad = bad_requests(store)
    count = round(REQUESTS * BAD_PART)
    chosen = [bad[i % len(bad)] for i in range(count)] + random.choices(good, k=REQUESTS - count)
    yield from random.sample(chosen, len(chosen))


def send_all(port: int, requests: list[Request]) -> list[Reply]:
    with closing(Connection(port)) as connection:
        return [connection.post(f"/predictions/{one.model}", one.body, one.headers) for one in requests]


def check(request: Request, reply: Reply) -> None:
    if isinstance(request.expected, tuple):
        assert_refused(reply, *request.expected)
        return
    assert reply.status == 200, (request.kind, reply.body[:300])
    answer = reply.json if isinstance(reply.json, dict) else {"": reply.json}
    assert answer.keys() == request.expected.keys()
    for name, tensor in request.expected.items():
        assert_close(answer[name], tensor)


def test_under_load_every_request_gets_its_own_answer(server: TorchServe, store: Store) -> None:
    random.seed(5)
    torch.manual_seed(5)
    before = server.worker_pids("tagger"), server.worker_pids("scorer")
    requests = list(mixture(store))
    hands = [requests[i::CONNECTIONS] for i in range(CONNECTIONS)]
    with ThreadPoolExecutor(CONNECTIONS) as clients:
        replies = list(clients.map(lambda hand: send_all(server.inference, hand), hands))
    for hand, received in zip(hands, replies, strict=True):
        for request, reply in zip(hand, received, strict=True):
            check(request, reply)
    kinds = Counter(request.kind for request in requests)
    assert kinds["good"] == REQUESTS - round(REQUESTS * BAD_PART)
    assert len(kinds) > 20
    assert (server.worker_pids("tagger"), server.worker_pids("scorer")) == before
