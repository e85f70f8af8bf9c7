"""Row analysis: it may reject a harmless model, but must not accept one whose rows mix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from model_cases import Case, cases
from ragged import alone, part_of
from torch import Tensor, nn

from torchserve_neuron_lstm.config.load import parse_config
from torchserve_neuron_lstm.lowering import LoweringError, lower
from torchserve_neuron_lstm.lowering.exporter.export import export_model
from torchserve_neuron_lstm.lowering.proof.row_mixing import find_row_mixing

YAML = """\
neuron_lstm:
  inputs:
    x: {dtype: float32, shape: [batch, time, 4]}
    static: {dtype: float32, shape: [batch, 4]}
  buckets: {batch: [1, 4], length: [4, 9]}
"""
CONFIG = parse_config(YAML, "model-config.yaml")


class Model(nn.Module):
    def __init__(self, function: Callable[[Model, Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        self.lstm = nn.LSTM(4, 4, batch_first=True)
        self.steps = nn.LSTM(4, 4)
        self.linear = nn.Linear(4, 4)
        self.own_statistics = nn.BatchNorm1d(4, track_running_stats=False)

    def forward(self, x: Tensor, static: Tensor) -> Any:
        return self.function(self, x, static)


def default_scale(m: Model, x: Tensor, static: Tensor) -> Any:
    """Scale by the row's own mean, or by that of the whole batch where the row is zero."""
    own = static.abs().sum(1, keepdim=True)
    scale = torch.where(own > 0, static.abs().mean(1, keepdim=True), static.abs().mean())
    return m.lstm(x)[0] * scale.unsqueeze(1)


def filled(m: Model, x: Tensor, static: Tensor) -> Any:
    y = torch.zeros_like(static)
    y[:, 1:] = static.mean()
    return m.lstm(x)[1][0][-1] + y


APART: dict[str, Callable[[Model, Tensor, Tensor], Any]] = {
    "a recurrence": lambda m, x, s: m.lstm(x),
    "time first": lambda m, x, s: m.steps(x.transpose(0, 1))[0],
    "a state from the request": lambda m, x, s: m.lstm(x, (m.linear(s)[None], s[None]))[0],
    "flattened rows": lambda m, x, s: m.linear(x.reshape(-1, 4)).view(x.size(0), x.size(1), 4),
    "flattened, time first": lambda m, x, s: m.linear(x.transpose(0, 1).reshape(-1, 4)).view(x.size(1), x.size(0), 4),
    "attention": lambda m, x, s: torch.softmax(x @ x.transpose(1, 2), -1) @ x,
    "the last step by index": lambda m, x, s: m.lstm(x)[0][:, -1],
    "written in place": lambda m, x, s: torch.zeros_like(s).add_(s).mul_(2.0),
    "one-hot vectors": lambda m, x, s: m.lstm(torch.nn.functional.one_hot((x[:, :, 0] > 0).long(), 4).float())[0],
}
MIXED: dict[str, Callable[[Model, Tensor, Tensor], Any]] = {
    "a default over the batch": default_scale,
    "a mean over the batch": lambda m, x, s: x - x.mean(0, keepdim=True),
    "a mean over everything": lambda m, x, s: x / x.abs().mean(),
    "statistics of the batch": lambda m, x, s: m.own_statistics(s) + m.lstm(x)[1][0][-1],
    "a condition on the batch": lambda m, x, s: torch.where((s > 1).any(), x, -x),
    "a sort that is not undone": lambda m, x, s: x[s.sum(1).argsort()],
    "rows sorted": lambda m, x, s: s.sort(0).values + m.lstm(x)[1][0][-1],
    "the row before": lambda m, x, s: s.roll(1, 0) + m.lstm(x)[1][0][-1],
    "the number of rows": lambda m, x, s: x / x.size(0),
    "the number of rows by its name": lambda m, x, s: torch.add(x, x, alpha=x.size(0)),
    "the position of a row": lambda m, x, s: x + torch.arange(x.size(0))[:, None, None],
    "a view that mixes": lambda m, x, s: x.reshape(x.size(1), x.size(0), 4).transpose(0, 1),
    "rows against rows": lambda m, x, s: (s @ s.transpose(0, 1)).sum(1, keepdim=True) + s,
    "the first row for all": lambda m, x, s: x + s[:1, None],
    "written in place": filled,
}


def _mixing(function: Callable[[Model, Tensor, Tensor], Any]) -> Any:
    traced = export_model(Model(function).eval(), CONFIG)
    return find_row_mixing(traced.exported, CONFIG.input_specs)


@pytest.mark.parametrize("function", APART.values(), ids=APART.keys())
def test_operators_that_keep_rows_apart_are_proved(function: Callable[[Model, Tensor, Tensor], Any]) -> None:
    assert _mixing(function) is None


@pytest.mark.few(4)
@pytest.mark.parametrize("case", cases())
def test_every_test_model_is_proved(case: Case) -> None:
    """No ordinary model needs the second way for its rows."""
    config = parse_config(case.yaml, "model-config.yaml")

    assert find_row_mixing(export_model(case.make().eval(), config).exported, config.input_specs) is None


@pytest.mark.few(12)
@pytest.mark.parametrize("function", MIXED.values(), ids=MIXED.keys())
def test_operators_that_mix_rows_are_named(function: Callable[[Model, Tensor, Tensor], Any]) -> None:
    mixing = _mixing(function)

    assert mixing is not None
    assert "test_row_mixing.py" in str(mixing)


@pytest.mark.few(2)
@pytest.mark.parametrize("function", MIXED.values(), ids=MIXED.keys())
def test_a_model_whose_rows_mix_is_served_as_each_request_alone_or_refused(
    function: Callable[[Model, Tensor, Tensor], Any],
) -> None:
    """A row of zeros beside others is what shows most of them."""
    model = Model(function).eval()
    try:
        program = lower(model, CONFIG)
    except LoweringError:
        return
    lengths, static = [9, 4, 1], torch.tensor([[0.0] * 4, [2.0] * 4, [-1.0, 3.0, 0.0, 1.0]])
    x = torch.randn(3, 9, 4)

    with torch.no_grad():
        outputs = program.exported.module()(x, static, torch.tensor(lengths))

    for row, length in enumerate(lengths):
        expected = alone(model, CONFIG, [x[row, :length], static[row]], length)
        for output, spec, own in zip(outputs, program.outputs, expected, strict=True):
            ours = part_of(output, spec, row, length)
            assert torch.allclose(ours.reshape(own.shape), own, 1e-5, 1e-5, equal_nan=True)
