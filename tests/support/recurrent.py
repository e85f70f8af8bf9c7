"""One recurrent layer as an abstract masked operator, and the same layer of torch on every row alone."""

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torchserve_neuron_lstm.backends import recurrent_operators as _recurrent_operators  # noqa: F401  registers the operators

FEATURES, HIDDEN, PROJECTED = 5, 6, 4
BATCH, TIME = 4, 9
LENGTHS = torch.tensor([TIME, 1, 5, TIME - 1])
GARBAGE = (0.0, 1e4, 1e30, float("inf"), float("nan"))


@dataclass(frozen=True)
class Case:
    """A configuration of a recurrent layer."""

    cell: str = "lstm"
    layers: int = 1
    bidirectional: bool = False
    projected: bool = False
    bias: bool = True
    given_state: bool = False
    need_cell: bool = True
    ragged: bool = True

    def __str__(self) -> str:
        flags = [
            name for name in ("bidirectional", "projected", "given_state", "need_cell", "ragged") if getattr(self, name)
        ]
        return "-".join([self.cell, str(self.layers), *flags, *([] if self.bias else ["nobias"])])


CASES = (
    Case(),
    Case(layers=3, need_cell=False),
    Case(layers=2, bidirectional=True, given_state=True),
    Case(layers=2, bidirectional=True, given_state=True, need_cell=False, bias=False),
    Case(layers=2, projected=True, given_state=True),
    Case(layers=2, projected=True, bidirectional=True, given_state=True),
    Case(projected=True, bias=False, bidirectional=True, need_cell=False),
    Case(layers=2, bidirectional=True, given_state=True, ragged=False),
    Case(layers=2, projected=True, bidirectional=True, given_state=True, ragged=False),
    Case("gru", layers=2),
    Case("gru", layers=3, bidirectional=True, given_state=True),
    Case("gru", bias=False, bidirectional=True, ragged=False, given_state=True),
    Case("rnn_tanh", layers=2, bidirectional=True, given_state=True),
    Case("rnn_relu", bias=False, given_state=True),
    Case("rnn_relu", layers=2, bidirectional=True, ragged=False),
)


class Recurrent(nn.Module):
    """A layer forward(x[B, T, F], lengths[B]) by the abstract operator; given states are learned."""

    def __init__(self, case: Case, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.case = case
        projected = PROJECTED if case.projected else 0
        options: dict[str, Any] = {"proj_size": projected} if case.projected else {}
        if case.cell.startswith("rnn"):
            options["nonlinearity"] = case.cell[4:]
        kind = {"lstm": nn.LSTM, "gru": nn.GRU}.get(case.cell, nn.RNN)
        self.core = kind(
            FEATURES, hidden, case.layers, bias=case.bias, batch_first=True, bidirectional=case.bidirectional, **options
        )
        rows = case.layers * (2 if case.bidirectional else 1)
        scale = 1.0 if case.given_state else 0.0
        self.h_0 = nn.Parameter(scale * torch.randn(rows, 1, projected or hidden))
        self.c_0 = nn.Parameter(scale * torch.randn(rows, 1, hidden))

    def _states(self, batch: int) -> list[torch.Tensor]:
        states = [self.h_0, self.c_0] if self.case.cell == "lstm" else [self.h_0]
        return [state.expand(-1, batch, -1).contiguous() for state in states]

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, ...]:
        case, states = self.case, self._states(x.shape[0])
        given = lengths if case.ragged else None
        weights = [getattr(self.core, name) for name in self.core._flat_weights_names]
        if case.cell == "lstm":
            y, h_n, c_n = torch.ops.neuron_lstm.lstm(
                x, given, *states, weights, case.bias, case.layers, case.bidirectional, case.need_cell
            )
            return (y, h_n, c_n) if case.need_cell else (y, h_n)
        answers: tuple[torch.Tensor, ...] = torch.ops.neuron_lstm.rnn(
            x, given, *states, weights, case.cell, case.bias, case.layers, case.bidirectional
        )
        return answers

    def alone(self, x: torch.Tensor, lengths: torch.Tensor) -> list[torch.Tensor]:
        """The answers of torch's own layer for each row without its padding, concatenated."""
        case, time = self.case, x.shape[1]
        rows: list[list[torch.Tensor]] = []
        for index, length in enumerate(lengths.tolist() if case.ragged else [time] * len(x)):
            states = self._states(1)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="LSTM with projections is not supported with oneDNN")
                y, final = self.core(x[index : index + 1, :length], tuple(states) if case.cell == "lstm" else states[0])
            finals = list(final) if case.cell == "lstm" else [final]
            rows.append([nn.functional.pad(y, (0, 0, 0, time - length)), *finals])
        y, h_n, *c_n = (torch.cat(kind, 0 if i == 0 else 1) for i, kind in enumerate(zip(*rows, strict=True)))
        return [y, h_n, *(c_n if case.need_cell else [])]


def ragged_batch(garbage: float, batch: int = BATCH, time: int = TIME) -> tuple[torch.Tensor, torch.Tensor]:
    """x[B, T, F] with `garbage` on its padding, and lengths that include 1 and T."""
    lengths = LENGTHS.clamp(max=time).repeat(batch // BATCH + 1)[:batch]
    x = torch.randn(batch, time, FEATURES, generator=torch.Generator().manual_seed(batch * time))
    padding = torch.arange(time)[None, :] >= lengths[:, None]
    return torch.where(padding[:, :, None], garbage, x), lengths


def exported(module: nn.Module, *inputs: torch.Tensor) -> torch.export.ExportedProgram:
    """The module with symbolic batch (dimension 0 of every input) and time (dimension 1 of the first)."""
    batch, time = torch.export.Dim("batch", min=1), torch.export.Dim("time", min=1)
    shapes = tuple({0: batch, 1: time} if index == 0 else {0: batch} for index in range(len(inputs)))
    with torch.no_grad():
        return torch.export.export(module.eval(), inputs, dynamic_shapes=shapes, strict=False)


def largest_error(ours: Iterable[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    """The largest absolute difference; shapes must agree and all numbers must be finite."""
    errors = []
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.shape == other.shape
        assert mine.is_contiguous()
        errors.append(float((mine - other).abs().max()))
    assert all(math.isfinite(error) for error in errors), "NaN in an answer"
    return max(errors)


class Several(nn.Module):
    """Layers side by side behind a big table, with other operators and inputs of programs.

    It has a tensor written in the code, a buffer outside the state dict, int32 ids, a bool and an unused input.
    """

    def __init__(self, cases: tuple[Case, ...], rows: int = 5_000_000) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, FEATURES)
        self.cases = cases
        self.layers = nn.ModuleList(Recurrent(case) for case in cases)
        self.scale: torch.Tensor
        self.register_buffer("scale", torch.randn(100, FEATURES), persistent=False)

    def _prepared(self, x: torch.Tensor, ids: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        x = x * self.scale.sum(0) + torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5]) + self.table(ids)[:, None]
        return torch.where(keep[:, None, None], x, -x)

    def forward(
        self, x: torch.Tensor, ids: torch.Tensor, keep: torch.Tensor, unread: torch.Tensor, lengths: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        x = self._prepared(x, ids, keep)
        return tuple(answer for layer in self.layers for answer in layer(x, lengths))

    def alone(self, inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        """The answers of torch for each row without its padding."""
        x = self._prepared(*inputs[:3])
        return [answer for layer in self.layers for answer in layer.alone(x, inputs[4])]  # type: ignore[operator]  # a `Recurrent`

    def without_padding(self, answers: Iterable[torch.Tensor], garbage: float) -> list[torch.Tensor]:
        """The answers of layers with lengths, if there is garbage: the others see the padding, by definition."""
        counts = [3 if case.cell == "lstm" and case.need_cell else 2 for case in self.cases]
        ragged = [case.ragged for case, count in zip(self.cases, counts, strict=True) for _ in range(count)]
        return [answer for answer, keep in zip(answers, ragged, strict=True) if keep or not garbage]


def several_inputs(garbage: float) -> tuple[torch.Tensor, ...]:
    """Inputs of `Several`, BATCH x TIME."""
    x, lengths = ragged_batch(garbage)
    ids = torch.tensor([3, 999, 0, 5], dtype=torch.int32)
    return x, ids, torch.tensor([True, False, True, True]), torch.zeros(BATCH, 2), lengths
