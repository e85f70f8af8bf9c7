"""A real server with neuronx, on a double of its toolchain: sessions outlive the worker and its core."""

import json
import os
import signal
import time
from pathlib import Path

import neuron_doubles
import pytest
import torch
from archiving import archived, write_source
from rest import JSON, Reply, post
from served_models import SCORER, scoring
from torchserve_process import TorchServe, serving

BUCKETS = "{batch: [2], length: [4], longest: 16}"
BLOCK = scoring(BUCKETS, "backend: neuronx", "compiler_args: --target inf2", "streaming: {}")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_stream_goes_on_after_its_worker_was_killed(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", SCORER, BLOCK)
    config = source.folder / "model-config.yaml"
    config.write_text(config.read_text().replace("Workers: 1", "Workers: 2"))
    with neuron_doubles.on_path():
        archived(source, "scorer", tmp_path)
    frames = torch.randn(9, 3)
    environment = {"PYTHONPATH": str(neuron_doubles.DOUBLES), "NEURON_LSTM_SESSIONS": str(tmp_path / "sessions")}
    with serving(tmp_path, {"scorer": "scorer.mar"}, environment=environment) as server:
        first = _send(server, frames[:5], start=True)
        assert first.status == 200, first.body
        for worker in server.workers("scorer"):
            os.kill(int(worker["pid"]), signal.SIGKILL)
        second = _sent_at_last(server, frames[5:])
    with torch.no_grad():
        whole = source.model(frames[None], torch.tensor([9]))[0]

    answers = torch.tensor([*first.json["scores"], *second.json["scores"]])
    torch.testing.assert_close(answers, whole, atol=1e-5, rtol=1e-5)


_RESTART_SECONDS = 150
"""Longest wait for a worker that starts anew: a request stays in TorchServe's queue until then."""


def _send(server: TorchServe, frames: torch.Tensor, *, start: bool) -> Reply:
    named = {"ts_request_sequence_id": "one", **({"ts_request_sequence_start": "true"} if start else {})}
    body = json.dumps(frames.tolist()).encode()
    return post(server.inference, "/predictions/scorer", body, {**JSON, **named}, seconds=_RESTART_SECONDS)


def _sent_at_last(server: TorchServe, frames: torch.Tensor) -> Reply:
    """Send a request, again and again until workers have started."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        reply = _send(server, frames, start=False)
        if reply.status == 200:
            return reply
        time.sleep(0.5)
    raise AssertionError(reply.body)
