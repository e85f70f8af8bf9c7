"""A real server answers with an engine and the CPU together, on a host without this project."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import python_path
import torch
from archiving import archived, write_source
from bare_host import make_bare_host
from rest import assert_close, post_json
from torchserve_process import serving

pytestmark = pytest.mark.ci

MODEL = Path(__file__).parent / "models" / "resonator.py"
BLOCK = """
inputs: {frames: {dtype: float32, shape: [batch, time, 3]}}
lengths: lengths
outputs: [scores]
buckets: {batch: [1, 4], length: [8]}
backend: onnxruntime
partitioner_config: {ops_to_partition: ["aten::linear"]}
"""
LENGTHS = (1, 5, 8, 13, 21)


def test_requests_of_every_length_are_answered_as_eager_answers_them(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", MODEL, BLOCK.replace("length: [8]", "length: [8], longest: 32"))
    archived(source, "resonator", tmp_path)
    frames = [torch.randn(length, 3, generator=torch.Generator().manual_seed(length)) for length in LENGTHS]
    host = make_bare_host(tmp_path / "host")
    with serving(tmp_path, {"resonator": "resonator.mar"}, python=host, environment=python_path.NONE) as server:
        path = "/predictions/resonator"
        with ThreadPoolExecutor(len(frames)) as clients:
            replies = list(clients.map(lambda x: post_json(server.inference, path, x.tolist()), frames))
    for reply, x in zip(replies, frames, strict=True):
        assert reply.status == 200, reply.body
        with torch.no_grad():
            assert_close(reply.json, source.model(x[None], torch.tensor([len(x)]))[0])
