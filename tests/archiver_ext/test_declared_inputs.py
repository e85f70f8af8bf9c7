"""Inputs that requests name otherwise than forward(), and that take NaN: in programs, sessions and own code."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from archiving import archive, write_source

from torchserve_neuron_lstm.inference.open_archive import open_archive

MODEL = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(4, 3, batch_first=True)

    def forward(self, batch, n, mask, x=None):
        states, _ = self.gru(torch.cat([x.nan_to_num(0.5), x.isnan().float()], -1))
        return states * mask.unsqueeze(-1) * (n > 0).view(-1, 1, 1) + batch.scale.unsqueeze(1)
"""
BLOCK = """\
inputs:
  frames: {argument: x, dtype: float32, shape: [batch, time, 2], missing: nan}
  n: {argument: batch.scale, dtype: float32, shape: [batch, 3]}
lengths: n
mask: {name: mask, dtype: float32}
buckets: {batch: [1, 4], length: [4, 9]}
"""
ENGINES = "streaming: {}\nbackend: {auto: {try: [native, onnxruntime, eager]}}"


@pytest.mark.parametrize("more", [pytest.param(ENGINES, marks=pytest.mark.ci), "lowering: off"])
def test_answers_and_names_are_as_the_yaml_says(tmp_path: Path, more: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_LSTM_SESSIONS", str(tmp_path / "sessions"))
    (tmp_path / "model.py").write_text(MODEL)
    source = write_source(tmp_path / "source", tmp_path / "model.py", BLOCK + more)
    done = archive(source, "m", tmp_path, ["--archive-format", "no-archive"])
    assert (done.returncode, "rejected" in done.stdout) == (0, False), done.stdout

    frames, n = torch.randn(9, 2), torch.randn(3)
    frames[-1] = frames[0, 0] = torch.nan
    nulls = [[None if torch.isnan(value) else value.item() for value in row] for row in frames]
    alone = source.model(SimpleNamespace(scale=n[None]), torch.tensor([9]), torch.ones(1, 9), frames[None])[0]
    with open_archive(tmp_path / "m") as opened:
        answers = opened.predict([{"n": n, "frames": given} for given in (frames[:4], frames, nulls)], as_numpy=True)
        if more == ENGINES:
            session = opened.session()
            sent = [session.send({"n": n, "frames": part}) for part in frames.split(5)]
            answers.append(torch.cat([torch.as_tensor(answer) for answer in sent]))
    for answer in map(torch.as_tensor, answers):
        torch.testing.assert_close(answer, alone.detach()[: len(answer)])
