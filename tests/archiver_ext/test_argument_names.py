"""Inputs that requests name otherwise than forward(): each engine and the model's own code get its own names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from archiving import archive, write_source

from torchserve_neuron_lstm.inference.open_archive import open_archive

MODEL = """\
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.gru = nn.Embedding(20, 4), nn.GRU(4, 3, batch_first=True)

    def forward(self, batch, n, mask, ids=None):
        packed = pack_padded_sequence(self.embed(ids), n, batch_first=True, enforce_sorted=False)
        states = pad_packed_sequence(self.gru(packed)[0], batch_first=True, total_length=ids.shape[1])[0]
        return states * mask.unsqueeze(-1) + batch.scale.unsqueeze(1)
"""
BLOCK = """\
inputs:
  tokens: {argument: ids, dtype: int64, shape: [batch, time]}
  n: {argument: batch.scale, dtype: float32, shape: [batch, 3]}
lengths: n
mask: {name: mask, dtype: float32}
buckets: {batch: [1, 4], length: [4, 9]}
backend: native
"""


def packaged(folder: Path, block: str) -> Any:
    (folder / "model.py").write_text(MODEL)
    source = write_source(folder / "source", folder / "model.py", block)
    return source.model, archive(source, "m", folder, ["--archive-format", "no-archive"])


def requests() -> list[dict[str, torch.Tensor]]:
    return [{"n": torch.randn(3), "tokens": torch.arange(length)} for length in (9, 1, 4)]


def alone(model: Any, request: dict[str, torch.Tensor]) -> torch.Tensor:
    ids, batch = request["tokens"][None], type("Batch", (), {"scale": request["n"][None]})
    answer: torch.Tensor = model(batch, torch.tensor([ids.shape[1]]), torch.ones(ids.shape), ids)[0].detach()
    return answer


@pytest.mark.parametrize("lowering", ["required", "off"])
def test_requests_use_the_names_of_the_yaml_and_the_model_gets_its_arguments(tmp_path: Path, lowering: str) -> None:
    model, done = packaged(tmp_path, f"{BLOCK}lowering: {lowering}\n")

    assert done.returncode == 0, done.stdout
    with open_archive(tmp_path / "m") as opened:
        assert [spec.name for spec in opened.inputs] == ["tokens", "n"]
        given = requests()
        for request, answer in zip(given, opened.predict(given, as_numpy=True), strict=True):
            torch.testing.assert_close(torch.as_tensor(answer), alone(model, request))


def test_a_session_uses_the_names_of_the_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_LSTM_SESSIONS", str(tmp_path / "sessions"))
    model, done = packaged(tmp_path, f"{BLOCK}streaming: {{}}\n")

    assert done.returncode == 0, done.stdout
    (request, *_) = requests()
    with open_archive(tmp_path / "m") as opened:
        session = opened.session()
        parts = [session.send({**request, "tokens": part}) for part in request["tokens"].split(5)]
    torch.testing.assert_close(torch.cat([torch.tensor(part) for part in parts]), alone(model, request))


@pytest.mark.parametrize("lowering", ["auto", "off"])
def test_an_argument_that_forward_does_not_have_is_refused_by_its_name(tmp_path: Path, lowering: str) -> None:
    _, done = packaged(tmp_path, f"{BLOCK.replace('argument: ids', 'argument: idz')}lowering: {lowering}\n")

    assert done.returncode == 1
    assert "got an unexpected keyword argument 'idz'" in done.stdout.replace("\n", " ")
