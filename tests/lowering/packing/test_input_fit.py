from typing import Any

import pytest
import torch
from input_configs import one_input
from ragged import lower_exact
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from torchserve_neuron_lstm.lowering import LoweringError, lower
from torchserve_neuron_lstm.lowering.packing.recurrence_fit import checked_packed_features
from torchserve_neuron_lstm.lowering.program import LoweredModel


class Packed(nn.Module):
    def __init__(self, cell: Any = nn.LSTM) -> None:
        super().__init__()
        self.layer = cell(12, 8, batch_first=True)
        self.head = nn.Linear(8, 9)

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        packed, _ = self.layer(pack_padded_sequence(x, lengths, True, False))  # layer
        return self.head(pad_packed_sequence(packed, True)[0])


class Padded(Packed):
    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        return self.head(self.layer(x)[0])  # layer


class LastState(Packed):
    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        return self.head(self.layer(x)[0].mean(1))  # layer


class FixedState(Packed):
    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        return self.head(self.layer(x, (torch.zeros(1, 4, 8), torch.zeros(1, 4, 8)))[0])  # state


class FixedView(Packed):
    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        return self.head(self.layer(x)[0]).reshape(4, -1, 9)  # view


class Branch(Packed):
    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        return self.head(self.layer(-x if x.sum() > 0 else x)[0])  # branch


class CountedClasses(Packed):
    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        return self.head(self.layer(nn.functional.one_hot(x[:, :, 0].long()).float())[0])  # classes


def lowered(model: nn.Module, shape: str = "[batch, time, 12]", dtype: str = "float32") -> LoweredModel:
    return lower(model.eval(), one_input(shape, "lengths: lengths", dtype=dtype))


def refusal(model: nn.Module, **inputs: str) -> str:
    with pytest.raises(LoweringError) as refused:
        lowered(model, **inputs)
    return str(refused.value)


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("kind", [Packed, Padded])
def test_features_of_another_size_are_told_with_both_sizes(kind: type[Packed], cell: Any) -> None:
    """No size is compared by torch for packed data in an LSTM."""
    text = refusal(kind(cell), shape="[batch, time, 13]")

    assert "takes 12 features (its input_size), but gets 13" in text
    assert "write 12 in place of 13" in text
    assert "# layer" in text


@pytest.mark.parametrize("kind", [Packed, Padded, LastState])
def test_swapped_axes_are_told_at_the_layer(kind: type[Packed]) -> None:
    text = refusal(kind(), shape="[time, batch, 12]")

    assert "takes the batch as time" in text
    assert "[batch, time, ...] there for batch_first=True" in text
    assert "# layer" in text
    assert lowered(kind(), shape="[batch, time, 12]").outputs


@pytest.mark.parametrize("kind", [Packed, Padded])
def test_time_in_the_place_of_the_features_is_told(kind: type[Packed]) -> None:
    assert "at the last dimension, which is batch or time here" in refusal(kind(), shape="[batch, 12, time]")


@pytest.mark.parametrize(
    ("kind", "words", "line"),
    [
        (FixedState, "fixed shape [1, 4, 8], which fits one batch size only", "# state"),
        (FixedView, "reshaped to [4, -1, 9], which fits one batch size", "# view"),
        (CountedClasses, "num_classes=26", "# classes"),
    ],
)
def test_a_size_of_one_batch_or_of_its_values_is_told_at_its_line(kind: type[nn.Module], words: str, line: str) -> None:
    """The words have the sizes, not the exporter's symbols."""
    text = refusal(kind())

    assert words in text
    assert line in text


@pytest.mark.parametrize(
    ("kind", "inputs", "weights"), [(Packed, "float32", torch.float64), (Padded, "float64", torch.float32)]
)
def test_weights_of_another_precision_than_the_inputs_are_told(
    kind: type[Packed], inputs: str, weights: torch.dtype
) -> None:
    text = refusal(kind().to(weights), dtype=inputs)

    assert f"{str(weights).removeprefix('torch.')} weights but gets {inputs} data" in text.replace(",", "")
    assert "# layer" in text
    assert lowered(kind().to(weights), dtype=str(weights).removeprefix("torch.")).outputs


def test_a_refused_branch_leaves_standard_error_empty(capfd: pytest.CaptureFixture[str]) -> None:
    """The exporter would print its graph there."""
    text = refusal(Branch())

    assert "the control flow of Branch.forward depend on the values of its inputs (at " in text
    assert "# branch" in text
    assert capfd.readouterr().err == ""


def test_a_call_in_eager_mode_is_checked_too() -> None:
    """An LSTM would read beyond the rows of packed data."""
    model: Any = Packed()
    with checked_packed_features(model), pytest.raises(LoweringError, match="takes 12 features"):
        model(torch.zeros(2, 3, 11), torch.tensor([3, 1]))
    with checked_packed_features(model):
        assert model(torch.zeros(2, 3, 12), torch.tensor([3, 1])).shape == (2, 3, 9)


class PaddedPairs(nn.Module):
    """Pairs of timesteps as one, with a timestep of zeros after an odd number."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(10, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        x = nn.functional.pad(x, (0, 0, 0, x.size(1) % 2))
        return self.gru(x.view(x.size(0), x.size(1) // 2, -1))[0]


@pytest.mark.ci
def test_features_that_are_an_expression_of_the_timesteps_are_no_fault_of_the_inputs() -> None:
    """The expression has the same value for every number of timesteps: the model is served."""
    config = one_input("[batch, time, 5]", batch="[1]", length="[8, 16]")

    lower_exact(PaddedPairs().eval(), config, ([1], [2], [7], [16]))
