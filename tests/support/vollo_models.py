"""Models for Vollo in the abstract operators, and torch's outputs for each of their rows alone."""

from typing import Any

import torch
from recurrent import exported
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from torchserve_neuron_lstm.backends import recurrent_operators as _recurrent_operators  # noqa: F401  registers the operators

BATCH, TIME, FEATURES, HIDDEN = 4, 6, 5, 16
LENGTHS = torch.tensor([TIME, 1, 4, TIME - 1])


class Answers(nn.Module):
    """An LSTM with an output for each timestep, its final states, and operators on them."""

    def __init__(self, layers: int = 1, *, both: bool = False, cells: bool = False, given: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.both, self.cells, self.given = layers, both, cells, given
        self.core = nn.LSTM(FEATURES, HIDDEN, layers, batch_first=True, bidirectional=both)
        self.norm = nn.LayerNorm(HIDDEN * (2 if both else 1))
        self.linear = nn.Linear(HIDDEN * (2 if both else 1), 3)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = self.layers * (2 if self.both else 1)
        h_0, c_0 = states if self.given else (x.new_zeros(rows, x.shape[0], HIDDEN),) * 2
        weights = [getattr(self.core, name) for name in self.core._flat_weights_names]
        y, h, c = torch.ops.neuron_lstm.lstm(x, lengths, h_0, c_0, weights, True, self.layers, self.both, self.cells)
        return (torch.relu(self.linear(self.norm(y))), y.sum(1), torch.tanh(h[-1]), *([c] if self.cells else []))

    def alone(self, x: torch.Tensor, lengths: torch.Tensor, *states: torch.Tensor) -> list[torch.Tensor]:
        """Compute with torch's packed sequences; the first output is zero at padding."""
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        answers, (h, c) = self.core(packed, tuple(states) if self.given else None)
        y, _ = pad_packed_sequence(answers, batch_first=True, total_length=x.shape[1])
        in_time = real(torch.relu(self.linear(self.norm(y))), lengths)
        return [in_time, y.sum(1), torch.tanh(h[-1]), *([c] if self.cells else [])]


class InTime(Answers):
    """Only the output for each timestep: one program of the device."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return super().forward(x, lengths)[:1]

    def alone(self, x: torch.Tensor, lengths: torch.Tensor, *states: torch.Tensor) -> list[torch.Tensor]:
        """Compute with torch's packed sequences."""
        return super().alone(x, lengths)[:1]


def real(y: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Set padding to zero."""
    return torch.where((torch.arange(y.shape[1])[None, :] < lengths[:, None])[:, :, None], y, 0.0)


def batch(module: Answers, garbage: float = 0.0) -> tuple[torch.Tensor, ...]:
    """Return inputs x with `garbage` at padding, lengths, and initial states if the module takes them."""
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(BATCH, TIME, FEATURES, generator=rng)
    x = torch.where((torch.arange(TIME)[None, :] < LENGTHS[:, None])[:, :, None], x, garbage)
    shape = module.layers, BATCH, HIDDEN
    states = [torch.randn(shape, generator=rng) for _ in range(2)] if module.given else []
    return (x, LENGTHS, *states)


def program_of(module: Answers) -> torch.export.ExportedProgram:
    """Export with symbolic batch and time."""
    if not module.given:
        return exported(module, *batch(module))
    rows, time = torch.export.Dim("batch", min=1), torch.export.Dim("time", min=1)
    shapes: dict[str, Any] = {"x": {0: rows, 1: time}, "lengths": {0: rows}, "states": ({1: rows}, {1: rows})}
    with torch.no_grad():
        return torch.export.export(module.eval(), batch(module), dynamic_shapes=shapes, strict=False)
