"""Sums that are carried from chunk to chunk: they do not drift over the timesteps of a session."""

from __future__ import annotations

import torch
from input_configs import one_input
from torch import Tensor, nn

from torchserve_neuron_lstm.lowering import lower

STEPS = 2000


class Sums(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(1, 1, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.rnn(x)[0]
        return x.cumsum(1), x.sum(1), y


def test_sums_of_single_timesteps_are_those_of_the_whole_sequence() -> None:
    model, x = Sums().eval(), torch.full((1, STEPS, 1), 0.1)
    parts = lower(model, one_input("[batch, time, 1]", "streaming: {}")).chunked
    assert parts is not None
    assert parts.head is not None
    chunk, head = parts.chunk.module(), parts.head.module()
    specs = [value.spec for value in parts.carried]
    carried = [torch.zeros(spec.sizes(1, 1), dtype=getattr(torch, spec.dtype)) for spec in specs]
    one, sums = torch.tensor([1]), []

    with torch.no_grad():
        for t in range(STEPS):
            running, _, *carried = chunk(x[:, t : t + 1], one, *carried)
            sums.append(running)
        expected, total, _ = model(x)
        (found,) = head(torch.tensor([STEPS]), *carried)

    torch.testing.assert_close(torch.cat(sums, 1), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(found, total, rtol=1e-6, atol=0)
    assert {spec.dtype for spec in specs} == {"float32", "float64"}
