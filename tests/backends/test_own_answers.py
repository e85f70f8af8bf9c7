"""Answers are the caller's: a weight that is an answer as it is stays what it was, whatever becomes of the answer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from torchserve_neuron_lstm.backends.registry import get_backend


class Tempered(nn.Module):
    """Answers with a parameter and with a part of one."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.arange(3.0))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return x * self.temperature, self.temperature, self.temperature[1:]


@pytest.mark.parametrize("name", ["eager", "native", "onnxruntime"])
def test_a_weight_is_answered_as_a_copy(name: str, tmp_path: Path) -> None:
    """The next call answers as the first did."""
    model, engine = Tempered().eval(), get_backend(name)
    example = torch.ones(2, 3)
    engine.compile(torch.export.export(model, (example,)), None, tmp_path)
    run = engine.load(tmp_path, model.state_dict(), engine.host(), 1)

    for answer in run([example]):
        answer.fill_(9.0)

    assert [answer.tolist() for answer in run([example])] == [[[0.0, 1.0, 2.0]] * 2, [0.0, 1.0, 2.0], [1.0, 2.0]]
