"""A convolution, traced, saved, loaded and run: `python -m examples.seeds.module onnxruntime`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import nn

from torchserve_neuron_lstm import tracing

from .shown import Engine, Shown


class Model(nn.Module):
    """The convolution that is traced."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return one number for each 3 x 3 pixels."""
        answer: torch.Tensor = self.conv(x) + 1
        return answer


def show(engine: Engine) -> Shown:
    """Run the example on an engine."""
    shown = Shown(engine)
    model = Model()
    model.eval()
    trace = tracing.trace(model, torch.rand(1, 1, 3, 3), backend=engine.name, **engine.options)
    with tempfile.TemporaryDirectory() as folder:
        trace.save(Path(folder) / "model.traced")
        loaded = tracing.load(Path(folder) / "model.traced")
    x = torch.rand(1, 1, 3, 3)
    shown.compare(loaded(x), model(x).detach())
    shown.refuses(tracing.WrongInput, lambda: loaded(torch.rand(2, 1, 3, 3)))
    return shown


if __name__ == "__main__":
    from .command_line import main

    raise SystemExit(main(show))
