from collections.abc import Callable
from typing import Any

import pytest
import torch
from input_configs import config_of, one_input
from ragged import lower_exact
from torch import Tensor, nn

from torchserve_neuron_lstm.lowering import lower
from torchserve_neuron_lstm.lowering.exporter.model_attributes import restored_attributes
from torchserve_neuron_lstm.lowering.one_request.single_request import KeepsState

CONFIG = one_input("[batch, time, 5]")


class WeightDrop(nn.Module):
    """A time-major LSTM whose recurrent weights are set before every call, as in weight-dropped LSTMs."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 6)
        raw = self.lstm.get_parameter("weight_hh_l0")
        del self.lstm._parameters["weight_hh_l0"]
        self.lstm.register_parameter("weight_hh_l0_raw", nn.Parameter(raw.data))
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        raw = self.lstm.get_parameter("weight_hh_l0_raw")
        self.lstm.weight_hh_l0 = nn.functional.dropout(raw, 0.5, training=self.training)
        y, _ = self.lstm(x)
        flat: Tensor = self.out(y.view(y.size(0) * y.size(1), 6))
        return flat


def test_weights_that_are_set_in_every_call_are_traced() -> None:
    """The states are viewed as rows: torch's time-major layers return contiguous tensors."""
    lower_exact(WeightDrop(), one_input("[time, batch, 5]"))


def test_attributes_and_lists_are_restored_after_an_error() -> None:
    model = WeightDrop()
    flat, before = model.lstm._flat_weights, list(model.lstm._flat_weights)

    @restored_attributes(model)
    def change_and_fail() -> None:
        object.__setattr__(model, "seen", [1])
        model.lstm.weight_hh_l0 = torch.zeros(1)
        model.out = nn.Linear(6, 6)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        change_and_fail()

    assert not hasattr(model, "seen")
    assert model.out.out_features == 3
    assert "weight_hh_l0" not in vars(model.lstm)
    assert model.lstm._flat_weights is flat
    assert all(one is other for one, other in zip(flat, before, strict=True))


class ListedWeights(nn.Module):
    """Parameters that forward() reads from a dict and a list, as in liquid networks."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.rand(5)), nn.Parameter(torch.rand(5))
        self.weights = {"scale": self.scale}
        self.shifts: list[Any] = [self.shift, 1.0]
        self.gru = nn.GRU(5, 6, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        y = x * self.weights["scale"] + self.shifts[0] * self.shifts[1]
        return self.gru(torch.sigmoid(y) * self.weights["scale"])[0]


def test_weights_in_a_list_or_a_dict_are_weights_of_the_program() -> None:
    model = ListedWeights()
    program = lower(model, CONFIG)

    assert set(program.exported.state_dict) == set(model.state_dict())
    assert not program.constants
    assert model.weights["scale"] is model.scale
    x, run = torch.randn(2, 7, 5), program.exported.module()
    with torch.no_grad():
        torch.testing.assert_close(run(x, torch.tensor([7, 7]))[0], model(x), atol=1e-5, rtol=1e-5)
        other = {name: value + 1 for name, value in model.state_dict().items()}
        run.load_state_dict(other)
        model.load_state_dict(other)
        torch.testing.assert_close(run(x, torch.tensor([7, 7]))[0], model(x), atol=1e-5, rtol=1e-5)


class OneHot(nn.Module):
    """A step of a recommender: ids become rows of a buffer that every call overwrites."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.zeros(1, 9)
        self.gru = nn.GRU(9, 6)

    def forward(self, ids: Tensor, hidden: Tensor) -> Tensor:
        self.table.zero_()
        rows = self.table.scatter_(1, ids.view(-1, 1), 1)
        states: Tensor = self.gru(rows.unsqueeze(0), hidden)[0]
        return states.view(-1, 6)


@pytest.mark.ci
def test_a_tensor_that_every_call_overwrites_is_no_state() -> None:
    model = OneHot()
    inputs = "{ids: {dtype: int64, shape: [batch]}, hidden: {dtype: float32, shape: [1, batch, 6]}}"

    program = lower(model, config_of(inputs, batch="[1, 4]", length="null"))

    ids, hidden = torch.tensor([3, 0, 8]), torch.randn(1, 3, 6)
    with torch.no_grad():
        ours = program.exported.module()(ids, hidden)[0]
        for row in range(3):
            own = model(ids[row : row + 1], hidden[:, row : row + 1])
            torch.testing.assert_close(ours[row : row + 1], own, atol=1e-5, rtol=1e-5)


class Remembering(nn.Module):
    def __init__(self, *, buffer: bool) -> None:
        super().__init__()
        self.gru = nn.GRU(5, 6, batch_first=True)
        if buffer:
            self.register_buffer("before", torch.zeros(6))
        else:
            self.before = torch.zeros(6)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.gru(x)[0] + self.before
        self.before.copy_(y[0, 0])
        return y


class Counting(nn.Module):
    """The loop is followed in another trace, so that no line is known."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(5, 6)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        calls = self.get_buffer("calls").add_(1)
        state = x.new_zeros(x.size(0), 6)
        for step in x.unbind(1):
            state = self.cell(step, state)
        return state * calls


class Adapting(nn.Module):
    def __init__(self, write: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.gru = nn.GRU(5, 6, batch_first=True)
        self.scale = nn.Parameter(torch.ones(6))
        self.write = write

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.write(self.scale)
        y: Tensor = self.gru(x)[0] * self.scale
        return y


HERE = r" \(at test_model_attributes"


@pytest.mark.ci
@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("make", "state"),
    [
        (lambda: Remembering(buffer=True), f"before, which an earlier call wrote{HERE}"),
        (lambda: Remembering(buffer=False), f"before, which an earlier call wrote{HERE}"),
        (Counting, "calls, which an earlier call wrote"),
        (lambda: Adapting(lambda scale: scale.mul_(0.5)), f"scale, which an earlier call wrote{HERE}"),
        (lambda: Adapting(lambda scale: scale.data.clamp_(max=0.5)), f"scale, which an earlier call wrote{HERE}"),
        (lambda: Adapting(lambda scale: scale[:2].add_(1)), f"scale, which an earlier call wrote{HERE}"),
    ],
    ids=["buffer", "attribute", "beside a loop", "parameter", "its data", "a part of it"],
)
def test_a_state_between_requests_is_refused_with_its_line(make: Callable[[], nn.Module], state: str) -> None:
    """A program would answer equal requests differently."""
    with pytest.raises(KeepsState, match=f"reads {state}"):
        lower(make(), CONFIG)


def test_a_parameter_that_is_overwritten_before_it_is_read_keeps_no_state() -> None:
    model = Adapting(lambda scale: scale.fill_(2.0))
    program = lower(model, CONFIG)

    x = torch.randn(1, 9, 5)
    with torch.no_grad():
        torch.testing.assert_close(program.exported.module()(x, torch.tensor([9]))[0], model(x), atol=1e-5, rtol=1e-5)
    assert not program.exported.graph_signature.parameters_to_mutate
