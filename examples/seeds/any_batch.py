"""A batch of 8 on a network traced with a batch of 1.

Run with `python -m examples.seeds.any_batch onnxruntime`.
"""

from __future__ import annotations

import torch
from torch import nn

from torchserve_neuron_lstm import tracing

from .module import Model
from .shown import Engine, Shown


def show(engine: Engine) -> Shown:
    """Run the example on an engine."""
    shown = Shown(engine)
    network = Model()
    network.eval()
    trace = tracing.trace(network, torch.rand(1, 1, 3, 3), backend=engine.name, **engine.options)
    any_batch = tracing.dynamic_batch(trace)
    for rows in (8, 1, 3):
        x = torch.rand(rows, 1, 3, 3)
        shown.compare(any_batch(x), network(x).detach())

    # batches are split along dimension 0: it must be the batch of every input, and no other size may differ
    shown.refuses(ValueError, lambda: any_batch(torch.rand(8, 1, 5, 3)))
    unequal = tracing.trace(torch.add, (torch.rand(1, 2), torch.rand(3, 2)), backend="eager")
    shown.refuses(ValueError, lambda: tracing.dynamic_batch(unequal))
    lstm = tracing.trace(TimeMajor(), torch.rand(20, 1, 4), backend="eager")
    shown.refuses(ValueError, lambda: tracing.dynamic_batch(lstm))
    return shown


class TimeMajor(nn.Module):
    """An LSTM over x[T, B, 4]: dimension 1 is the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs of every timestep."""
        y: torch.Tensor = self.lstm(x)[0]
        return y


if __name__ == "__main__":
    from .command_line import main

    raise SystemExit(main(show))
