"""Archives on Ray Serve: the responses are those of TorchServe, byte for byte."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import tritonclient.http as triton
from archiving import archived, write_source
from host_archives import Archives, assert_scores_of_the_whole, in_process
from mixed_requests import frames_of, mixed_requests
from rest import JSON, Reply, post
from served_models import SCORER, SCORING
from torchserve_process import TorchServe

from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest
from torchserve_neuron_lstm.hosts.ray import app
from torchserve_neuron_lstm.inference.errors import ArchiveError

from .conftest import MODELS

pytestmark = pytest.mark.timeout(600)
REQUESTS = 500


def plain(reply: Reply) -> tuple[int, str, bytes, str | None]:
    return reply.status, reply.content_type, reply.body, reply.headers.get("inference-header-content-length")


def test_500_mixed_requests_have_equal_bytes_on_ray_on_torchserve_and_in_process(
    ray_port: int, torchserve: TorchServe, archives: Archives
) -> None:
    """One at a time, so that every host runs the same program calls."""
    services = dict(in_process(archives, MODELS))
    differing, statuses = [], set()
    for model, path, body, headers in mixed_requests(REQUESTS):
        on_ray = plain(post(ray_port, path, body, headers))
        on_torchserve = plain(post(torchserve.inference, path, body, headers))
        statuses.add(on_ray[0])
        (own,) = services[model].handle([RawRequest({"body": body}, headers)])
        if on_ray != on_torchserve or on_ray[0] != own.status or on_ray[2] != own.body:
            differing.append((path, body[:80], on_ray, on_torchserve, own))

    assert differing == []
    assert statuses == {200, 400, 413}


def test_sessions_go_from_torchserve_to_ray_and_back(ray_port: int, torchserve: TorchServe, archives: Archives) -> None:
    frames, found = frames_of(21, 1), []
    ports = (torchserve.inference, ray_port, torchserve.inference)
    for port, (start, end) in zip(ports, ((0, 4), (4, 9), (9, 21)), strict=True):
        flags = {"sequence_start": start == 0, "sequence_end": end == 21}
        chunk = triton.InferInput("frames", [1, end - start, 3], "FP32").set_data_from_numpy(frames[None, start:end])
        with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
            found.append(client.infer("stream", [chunk], sequence_id=77, **flags).as_numpy("scores")[0])
    assert_scores_of_the_whole(archives, frames, found)


def test_new_archives_take_over_without_a_refused_request(ray_port: int, archives: Archives, tmp_path: Path) -> None:
    from ray import serve

    source = write_source(tmp_path / "source", SCORER, SCORING)
    weights = {name: value + 0.25 for name, value in source.model.state_dict().items()}
    torch.save(weights, source.folder / "weights.pt")
    archived(source, "scorer", tmp_path)
    body = json.dumps(frames_of(7, 3).tolist()).encode()
    ending, answers = threading.Event(), []

    def ask() -> None:
        while not ending.is_set():
            reply = post(ray_port, "/predictions/scorer", body, JSON)
            answers.append((reply.status, reply.body))

    old = post(ray_port, "/predictions/scorer", body, JSON)
    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(ask)
        paths = {name: str(archives.path(name)) for name in MODELS}
        serve.run(app({"archives": {**paths, "scorer": str(tmp_path / "scorer.mar")}}), route_prefix="/")
        until = time.monotonic() + 60
        while post(ray_port, "/predictions/scorer", body, JSON).body == old.body:
            assert time.monotonic() < until, "the new model never answered"
        ending.set()
    new = post(ray_port, "/predictions/scorer", body, JSON)

    assert {status for status, _ in answers} == {200}
    assert len(answers) > 20
    assert {found for _, found in answers} <= {old.body, new.body}
    assert old.body != new.body


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "expected either archive, the path of one, or archives"),
        ({"archive": "a.mar", "archives": {"a": "a.mar"}}, "expected either archive"),
        ({"archive": "a.mar", "replicas": 3, "max_replicas": 2}, "expected 3 (replicas) or more, got 2"),
        ({"archive": "a.mar", "thread": 2}, "thread"),
        ({"archive": "none.mar"}, "there is no archive none.mar"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_before_anything_starts(given: dict[str, Any], told: str) -> None:
    with pytest.raises((ValueError, ArchiveError)) as refused:
        app(given)

    assert told in str(refused.value)
