"""Models without time that fold their rows by hand: traced for one request alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from input_configs import one_input
from torch import Tensor, nn

from torchserve_neuron_lstm.lowering import lower

CONFIG = one_input("[batch, 12, 4]", length="null")


class Window(nn.Module):
    def __init__(self, function: Callable[[Window, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.gru = nn.GRU(4, 6)
        self.weekly = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def every_third(m: Window, x: Tensor) -> Tensor:
    """A recurrence over every third step: the steps between are folded into the batch."""
    rows = x.view(x.size(0), 4, 3, 4).permute(1, 0, 2, 3).contiguous().view(4, x.size(0) * 3, 4)
    h: Tensor = m.gru(rows)[1]
    return h.view(x.size(0), 18)


def last_three(m: Window, x: Tensor) -> Tensor:
    scores: Tensor = m.weekly(x[:, -3:, :].permute(0, 2, 1).contiguous().view(-1, 3))
    return scores.view(-1, 4)


def scaled_by_the_batch(m: Window, x: Tensor) -> Tensor:
    h: Tensor = m.gru((x / x.abs().mean()).transpose(0, 1))[1]
    return h[0]


@pytest.mark.few(2)
@pytest.mark.parametrize("function", [every_third, last_three, scaled_by_the_batch], ids=lambda f: f.__name__)
def test_a_window_is_served_as_each_request_alone(function: Callable[[Window, Tensor], Tensor]) -> None:
    model = Window(function)

    program = lower(model, CONFIG)

    assert not program.takes_lengths
    run = program.exported.module()
    for rows in (1, 2, 8):
        x = torch.randn(rows, 12, 4)
        for garbage in (None, 1e4, float("nan")):
            if garbage is not None and rows > 1:
                x[-1] = garbage
            with torch.no_grad():
                ours = run(x)[0]
                for row in range(rows if garbage is None or rows == 1 else rows - 1):
                    torch.testing.assert_close(ours[row], model(x[row : row + 1])[0], atol=1e-5, rtol=1e-5)
