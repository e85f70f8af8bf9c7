"""An LSTM over whole sequences: `python -m examples.seeds.lstm vollo`, or any other engine."""

from __future__ import annotations

import torch
from torch import nn

from torchserve_neuron_lstm import tracing
from torchserve_neuron_lstm.backends.registry import get_backend

from .shown import Engine, Shown

INPUT_SIZE, HIDDEN_SIZE, LAYERS, OUTPUT_SIZE, STEPS = 128, 256, 2, 16, 20


class LstmNet(nn.Module):
    """An LSTM that answers every timestep of x[T, 128]: [T, 16]."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(INPUT_SIZE, HIDDEN_SIZE, num_layers=LAYERS)
        self.linear = nn.Linear(HIDDEN_SIZE, OUTPUT_SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run one sequence, without a batch dimension."""
        y, _ = self.lstm(x)
        answer: torch.Tensor = self.linear(y)
        return answer


def show(engine: Engine) -> Shown:
    """Run the example on an engine."""
    shown = Shown(engine)
    model = LstmNet()
    model.eval()
    trace = tracing.trace(model, torch.randn(STEPS, INPUT_SIZE), backend=engine.name, **engine.options)
    for _ in range(3):
        x = torch.randn(STEPS, INPUT_SIZE)
        with torch.no_grad():
            shown.compare(trace(x), model(x))
    shown.refuses(tracing.WrongInput, lambda: trace(torch.randn(STEPS + 1, INPUT_SIZE)))
    backend = get_backend(engine.name)
    shown.latency_us = backend.estimate_us(trace.directory / trace.description.programs[0].directory)
    return shown


if __name__ == "__main__":
    from .command_line import main

    raise SystemExit(main(show))
