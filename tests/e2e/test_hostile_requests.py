"""Requests that are made to cost others their answers, on a real TorchServe: nobody else notices them."""

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from archiving import Source, archived, write_source
from attacks import ATTACKS, BLOCK, LARGEST_ANSWER
from rest import JSON, Reply, assert_close, post, post_json
from served_models import NATIVE, SCORER
from torchserve_process import TorchServe, serving

pytestmark = pytest.mark.ci

MODEL = "scorer"


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TorchServe, Source]]:
    store, work = tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("sources")
    source = write_source(work / MODEL, SCORER, f"{BLOCK}backend: {NATIVE}")
    archived(source, MODEL, store)
    with serving(store, {MODEL: f"{MODEL}.mar"}, settings={"max_response_size": str(LARGEST_ANSWER)}) as running:
        yield running, source


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def attack(server: TorchServe, name: str) -> Reply:
    body, headers, _ = ATTACKS[name]
    return post(server.inference, f"/predictions/{MODEL}", body, headers)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused_in_little_memory_and_requests_beside_it_are_answered(
    attacked: tuple[TorchServe, Source], name: str
) -> None:
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
    for reply in (one.result() for one in attacks):
        assert (reply.status, len(reply.body) < 4096) == (status, True), reply.body[:300]
        assert set(reply.json) >= {"code", "type", "message"}
    for one in others:
        assert one.result().status == 200, one.result().body
        assert_close(one.result().json, expected)
    assert server.worker_pids(MODEL) == [pid]
    assert peak - before <= 3 * 20 * len(body) + 64_000_000


def test_a_request_past_its_deadline_is_not_computed(attacked: tuple[TorchServe, Source]) -> None:
    server, _ = attacked
    body = json.dumps([[0.5, 0.5, 0.5]] * 4).encode()
    past, ahead = (str(int(time.time() * 1000) + shift) for shift in (-50, 60_000))
    late = post(server.inference, f"/predictions/{MODEL}", body, {**JSON, "X-Request-Deadline-Ms": past})
    timely = post(server.inference, f"/predictions/{MODEL}", body, {**JSON, "X-Request-Deadline-Ms": ahead})

    assert (late.status, late.json["type"], timely.status) == (504, "DeadlineExceeded", 200)


def test_the_limit_of_the_servers_own_file_is_known(attacked: tuple[TorchServe, Source], tmp_path: Path) -> None:
    server, _ = attacked
    answers = [
        post_json(server.inference, f"/predictions/{MODEL}", [[0.5, 0.1, -0.5]] * length)
        for length in (900, 1300, 4000)
    ]

    assert [reply.status for reply in answers] == [200, 413, 413]
    assert len(answers[0].body) <= LARGEST_ANSWER
