"""Requests that are made to cost others their answers, on a real TorchServe: nobody else notices them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from archiving import Source, archived, write_source
from rest import JSON, Reply, assert_close, post, post_json
from torchserve_process import TorchServe, serving

from .conftest import NATIVE, SCORER

MODEL = "scorer"
BLOCK = f"""
inputs: {{frames: {{dtype: float32, shape: [batch, time, 3]}}}}
lengths: lengths
outputs: [scores]
buckets: {{batch: [1, 8], length: [16, 4096]}}
limits: {{timesteps: 20000}}
backend: {NATIVE}
"""
LARGEST_ANSWER = 58_000
NPY = {"Content-Type": "application/x-npy"}


def entries(count: int, shape: list[int], data: list[float]) -> bytes:
    """A V2 request of equal entries."""
    one = {"name": "frames", "shape": shape, "datatype": "FP32", "data": data}
    return json.dumps({"inputs": [one] * count}).encode()


def npy(shape: str) -> bytes:
    """A .npy file without data."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


ATTACKS: dict[str, tuple[bytes, dict[str, str], int]] = {
    "an id that a refusal would repeat": (
        json.dumps({"model_name": "x", "inputs": 1, "id": "x" * 2_000_000}).encode(), JSON, 400),
    "an id of two megabytes": (
        json.dumps({"id": "\u00e9" * 300_000, "inputs": [{"name": "frames", "shape": [1, 3], "datatype": "FP32",
                                                      "data": [0, 0, 0]}]}).encode(), JSON, 400),
    "a million sequences": (entries(1024, [1024, 0, 3], []), JSON, 413),
    "batches in batches": (entries(200, [1024, 1, 3], [0.0] * 3072), JSON, 413),
    "half a body": (entries(200, [1024, 1, 3], [0.0] * 3072)[:2_000_000], JSON, 400),
    "an answer that is too large": (json.dumps([[0.5, 0.5, 0.5]] * 4096).encode(), JSON, 413),
    "more timesteps than allowed": (json.dumps({"instances": [[[0, 0, 0]] * 4000] * 9}).encode(), JSON, 413),
    "sizes of thousands of digits": (npy(f"(0, {'9' * 4000})"), NPY, 400),
    "no elements of an absurd size": (npy("(0, 1180591620717411303424)"), NPY, 400),
    "names without end": (json.dumps({"n" * 1_000_000: 1}).encode(), JSON, 400),
    "lists in lists": (b"[" * 3_000_000, {"Content-Type": "application/octet-stream"}, 400),
}  # fmt: skip


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TorchServe, Source]]:
    """A server with a limit of its own in `config.properties`."""
    store, work = tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("sources")
    source = write_source(work / MODEL, SCORER, BLOCK)
    archived(source, MODEL, store)
    with serving(store, {MODEL: f"{MODEL}.mar"}, settings={"max_response_size": str(LARGEST_ANSWER)}) as running:
        yield running, source


def resident_bytes(pid: int) -> int:
    """Memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def attack(server: TorchServe, name: str) -> tuple[Reply, float]:
    """The answer to an attack, and how long it took."""
    body, headers, _ = ATTACKS[name]
    began = time.monotonic()
    reply = post(server.inference, f"/predictions/{MODEL}", body, headers)
    return reply, time.monotonic() - began


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused_in_little_memory_and_requests_beside_it_are_answered(
    attacked: tuple[TorchServe, Source], name: str
) -> None:
    """The worker lives on; its memory grows by no more than 20 times the body and 64 MB."""
    server, source = attacked
    (pid,) = server.worker_pids(MODEL)
    frames = torch.randn(9, 3)
    with torch.inference_mode():
        expected = source.model(frames[None], torch.tensor([9]))[0]
    before = resident_bytes(pid)

    with ThreadPoolExecutor(8) as clients:
        attacks = [clients.submit(attack, server, name) for _ in range(3)]
        others = [
            clients.submit(post_json, server.inference, f"/predictions/{MODEL}", frames.tolist()) for _ in range(20)
        ]
        peak = before
        while not (all(one.done() for one in attacks) and all(one.done() for one in others)):
            peak = max(peak, resident_bytes(pid))
            time.sleep(0.002)

    body, _, status = ATTACKS[name]
    for reply, _ in (one.result() for one in attacks):
        assert (reply.status, len(reply.body) < 4096) == (status, True), reply.body[:300]
        assert set(reply.json) >= {"code", "type", "message"}
    for one in others:
        assert one.result().status == 200, one.result().body
        assert_close(one.result().json, expected)
    assert server.worker_pids(MODEL) == [pid]
    assert peak - before <= 3 * 20 * len(body) + 64_000_000


def test_a_request_past_its_deadline_is_not_computed(attacked: tuple[TorchServe, Source]) -> None:
    """504 with a JSON body; one in time is answered."""
    server, _ = attacked
    body = json.dumps([[0.5, 0.5, 0.5]] * 4).encode()
    past, ahead = (str(int(time.time() * 1000) + shift) for shift in (-50, 60_000))
    late = post(server.inference, f"/predictions/{MODEL}", body, {**JSON, "X-Request-Deadline-Ms": past})
    timely = post(server.inference, f"/predictions/{MODEL}", body, {**JSON, "X-Request-Deadline-Ms": ahead})

    assert (late.status, late.json["type"], timely.status) == (504, "DeadlineExceeded", 200)


def test_the_limit_of_the_servers_own_file_is_known(attacked: tuple[TorchServe, Source], tmp_path: Path) -> None:
    """Just below it an answer is sent."""
    server, _ = attacked
    answers = [
        post_json(server.inference, f"/predictions/{MODEL}", [[0.5, 0.1, -0.5]] * length)
        for length in (900, 1300, 4000)
    ]

    assert [reply.status for reply in answers] == [200, 413, 413]
    assert len(answers[0].body) <= LARGEST_ANSWER
