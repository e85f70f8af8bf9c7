"""The same LSTM one timestep at a time, with its state kept between calls.

Run with `python -m examples.seeds.streaming_lstm eager`.

On Vollo the accelerator keeps the state. Elsewhere the trace does, by `input_output_aliases`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from torchserve_neuron_lstm import tracing

from .lstm import HIDDEN_SIZE, INPUT_SIZE, LAYERS, STEPS, LstmNet
from .shown import Engine, Shown


class Step(nn.Module):
    """One timestep x[128] of an `LstmNet`, with the states h and c [2, 256] as inputs and outputs."""

    def __init__(self, network: LstmNet) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the answer [16] and the next states."""
        y, (h, c) = self.network.lstm(x[None], (h, c))
        return self.network.linear(y)[0], h, c


def show(engine: Engine) -> Shown:
    """Run the example on an engine."""
    shown = Shown(engine)
    model = LstmNet()
    model.eval()
    step, restart = _on_vollo(model, shown) if engine.name == "vollo" else _traced(model, shown)
    for _ in range(2):
        x = torch.randn(STEPS, INPUT_SIZE)
        with torch.no_grad():
            shown.compare(torch.stack([step(one) for one in x]), model(x))
        restart()
    shown.refuses(tracing.WrongInput, lambda: step(torch.randn(1, INPUT_SIZE)))
    return shown


def _traced(model: LstmNet, shown: Shown) -> tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[], None]]:
    states = torch.zeros(LAYERS, HIDDEN_SIZE), torch.zeros(LAYERS, HIDDEN_SIZE)
    trace = tracing.trace(
        Step(model),
        (torch.randn(INPUT_SIZE), *states),
        input_output_aliases={1: 1, 2: 2},
        backend=shown.engine.name,
        **shown.engine.options,
    )
    return trace, trace.reset_state


def _on_vollo(model: LstmNet, shown: Shown) -> tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[], None]]:
    from torchserve_neuron_lstm.backends.vollo.streaming import StreamingProgram

    config = shown.engine.options["compiler_args"][-1]
    program = StreamingProgram.compile(model, torch.randn(STEPS, INPUT_SIZE), config, time_dim=0)
    shown.latency_us = program.estimate_us
    return program.step, program.restart


if __name__ == "__main__":
    from .command_line import main

    raise SystemExit(main(show))
