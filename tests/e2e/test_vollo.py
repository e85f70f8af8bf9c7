"""A real server answers with Vollo's VM: skipped without its compiler, which only users install."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from archiving import archived, write_source
from rest import JSON, post
from torchserve_process import serving

pytest.importorskip("vollo_compiler", reason="under Myrtle.ai's EULA: docs/vollo.md")

MODEL = """
import torch


class Last(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(3, 16, batch_first=True)
        self.linear = torch.nn.Linear(16, 2)

    def forward(self, frames, lengths):
        packed = torch.nn.utils.rnn.pack_padded_sequence(frames, lengths, batch_first=True, enforce_sorted=False)
        _, (h, _) = self.lstm(packed)
        return self.linear(h[-1])
"""
BLOCK = """
inputs: {frames: {dtype: float32, shape: [batch, time, 3]}}
lengths: lengths
outputs: [scores]
buckets: {batch: [1, 2], length: [8]}
backend: vollo
precision: bfloat16
compiler_args: --config bittware_ia840f_c3b64
"""


@pytest.mark.timeout(300)
def test_a_server_answers_with_what_stands_in_for_an_accelerator(tmp_path: Path) -> None:
    (tmp_path / "last.py").write_text(MODEL, encoding="utf-8")
    source = write_source(tmp_path / "source", tmp_path / "last.py", BLOCK)
    archived(source, "last", tmp_path)
    with serving(tmp_path, {"last": "last.mar"}) as server:
        described = server.get("/models/last?customized=true")[0]["customizedMetadata"]
        for length in (1, 5, 8):
            frames = torch.randn(length, 3, generator=torch.Generator().manual_seed(length))
            reply = post(server.inference, "/predictions/last", json.dumps(frames.tolist()).encode(), JSON)
            with torch.no_grad():
                theirs = source.model(frames[None], torch.tensor([length]))[0]

            assert reply.status == 200, reply.body
            torch.testing.assert_close(torch.tensor(reply.json), theirs, rtol=1e-2, atol=1e-2)
        log = "\n".join(server.log_lines())

    told = described if isinstance(described, dict) else json.loads(described)
    assert told["simulation"].startswith("emulated by the VM of vollo-compiler")
    assert [entry["batch"] for entry in told["estimates"]] == [1, 2]
    assert all(0.1 < entry["microseconds"] < 10 for entry in told["estimates"])
    assert "emulated by the VM of vollo-compiler" in log
