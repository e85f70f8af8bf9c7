import pytest
import torch
from input_configs import config_of
from torch import Tensor, nn

from torchserve_neuron_lstm.lowering import LoweringError, lower


class PerTimestep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.lstm(x)[0]  # per timestep
        return outputs


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("{dtype: float32, shape: [batch, time, 4]}", "takes 3 features (its input_size), but gets 4"),
        ("{dtype: float64, shape: [batch, time, 3]}", "declare the inputs with `dtype: float32`"),
        ("{dtype: int64, shape: [batch, time, 3]}", "declare the inputs with `dtype: float32`"),
        (
            "{dtype: float32, shape: [batch, time, 3, 3]}",
            "got 4D instead. It was called with x as float32 [1, 4, 3, 3]",
        ),
    ],
)
def test_an_input_that_the_model_does_not_take_is_refused(declared: str, expected: str) -> None:
    with pytest.raises(LoweringError) as refused:
        lower(PerTimestep().eval(), config_of(f"{{x: {declared}}}", length="[4]"))

    assert expected in str(refused.value)
    assert "# per timestep" in str(refused.value)


def test_an_argument_that_forward_does_not_have_is_named() -> None:
    with pytest.raises(LoweringError, match=r"the arguments the configuration names \(y\): missing"):
        lower(PerTimestep(), config_of("{x: {argument: y, dtype: float32, shape: [batch, time, 3]}}"))


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        h, states = x.new_zeros(x.size(0), 4), []
        for t in range(x.size(1)):
            h = self.cell(x[:, t], h)  # cell
            states.append(h)
        return torch.stack(states, 1)


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        (
            "{dtype: float32, shape: [batch, time, 4]}",
            r"got 4 expected 3\. It was called with x as float32 \[1, 4, 4\].*check these under `inputs`",
        ),
        ("{dtype: float64, shape: [batch, time, 3]}", "have different precisions.*`dtype` of the weights"),
    ],
)
def test_a_cell_that_does_not_take_an_input_says_to_check_the_inputs(declared: str, words: str) -> None:
    """The line is that of the cell, not that of the loop."""
    with pytest.raises(LoweringError, match=rf"# cell\).*{words}"):
        lower(Cells().eval(), config_of(f"{{x: {declared}}}"))
