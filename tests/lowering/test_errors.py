import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from input_configs import one_input
from ragged import lower_exact
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from torchserve_neuron_lstm.lowering import LoweringError, lower
from torchserve_neuron_lstm.lowering.errors import explained_export_errors

CONFIG = one_input("[batch, time, 3]", "lengths: lengths", batch="[1, 4]", length="[4, 9]")


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=True)
        self.cell = nn.LSTMCell(3, 4)
        self.linear = nn.Linear(4, 2)

    def packed(self, x: Tensor, lengths: Any) -> torch.nn.utils.rnn.PackedSequence:
        output, _ = self.lstm(pack_padded_sequence(x, lengths, True, False))
        assert isinstance(output, torch.nn.utils.rnn.PackedSequence)
        return output

    def padded(self, x: Tensor, lengths: Any) -> Tensor:
        return pad_packed_sequence(self.packed(x, lengths), True)[0]


class Computing(Base):
    def __init__(self, function: Callable[[Base, Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        return self.function(self, x, lengths)


class ReturnsPackedData(Base):
    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        return self.packed(x, lengths).data


class ReturnsPackedSequence(Base):
    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        return self.packed(x, lengths)


class MaxOfPacked(Base):
    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        return torch.max(self.packed(x, lengths).data)  # max


class BranchesOnData(Base):
    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        if x.sum() > 0:  # branch
            return x
        return -x


class DataDependentShape(Base):
    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        return x[x > 0]  # select


class TotalLengthTooShort(Base):
    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        return pad_packed_sequence(self.packed(x, lengths), True, total_length=6)[0]  # total


class OtherArgument(Base):
    def forward(self, y: Tensor, lengths: Tensor) -> Any:
        return y


class RaisesItself(Base):
    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        raise KeyError("speaker")  # raises


class SqueezesTheBatch(Base):
    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        return self.padded(x, lengths).flip(1).squeeze()[:, 0, :]  # squeezed


class AlwaysDropsOut(Base):
    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        return nn.functional.dropout(self.lstm(x)[0], 0.5)  # dropout


class RandomState(Base):
    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        state = nn.init.xavier_uniform_(torch.zeros(x.size(0), 4)).unsqueeze(0)  # uniform
        return self.lstm(x, (state, state))[0]


class TakesShares(Base):
    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        return self.padded(x, (lengths * x.size(1)).cpu())


class ReturnsANumber(Base):
    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        return self.lstm(x)[0], 3


class ReturnsAReadNumber(Base):
    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        return self.lstm(x)[0], x.argmax().item()


class UnknownOperatorLater(Base):
    """Lengths read in Python, which one request alone allows, then an operator without a rule, which is the reason."""

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        rows = [row[: int(own)] for row, own in zip(x, lengths, strict=True)]
        return torch.stack([torch.histc(row, 4) for row in rows])  # histc


def loops_over_time(m: Base, x: Tensor, lengths: Tensor) -> Any:
    state = None
    for t in range(x.size(1)):
        state = m.cell(x[:, t], state)
    return state


SERVED: dict[str, Callable[[Base, Tensor, Tensor], Any]] = {
    "reads the shape of packed data": lambda m, x, lengths: x * m.packed(x, lengths).data.shape[0],
    "reads batch sizes": lambda m, x, lengths: x * pack_padded_sequence(x, lengths, True, False).batch_sizes.sum(),
    "cuts to the longest": lambda m, x, lengths: m.lstm(x[:, : int(lengths.max())])[0],
    "takes len()": lambda m, x, lengths: m.lstm(x)[0][torch.arange(len(x)), lengths - 1],
    "reads lengths": lambda m, x, lengths: m.padded(x, [int(n) for n in lengths]),
    "sums padding too": lambda m, x, lengths: m.linear(m.padded(x, lengths)).sum(1),
    "mean over padded time": lambda m, x, lengths: m.padded(x, lengths).mean(1),
    "unmasked maximum": lambda m, x, lengths: m.padded(x, lengths).max(1).values,
    "reverses padded time": lambda m, x, lengths: m.lstm(x.flip(1))[0],
    "mixes requests": lambda m, x, lengths: m.lstm(x)[0].sum(0),
    "a linear layer on packed data": lambda m, x, lengths: m.linear(m.packed(x, lengths).data),
    "loops over time": loops_over_time,
}
"""Models that are exact for one request alone."""
LONG = {
    *("loops over time", "sums padding too", "unmasked maximum", "a linear layer on packed data"),
    *("cuts to the longest", "reverses padded time"),
}

SEED = (
    'Operator "aten::lstm" consuming a PackedSequence input can only be supported when its corresponding '
    'PackedSequence output is unused or unpacked using "aten::_pad_packed_input". Found usage by '
)


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("model", "expected", "line"),
    [
        (ReturnsPackedData, SEED + '"prim::Return"', None),
        (ReturnsPackedSequence, SEED + '"prim::Return"', None),
        (MaxOfPacked, SEED + '"aten::max"', "# max"),
        (MaxOfPacked, "Resolution: pad the result with pad_packed_sequence()", None),
        (BranchesOnData, "depend on the values of its inputs", "# branch"),
        (DataDependentShape, "a selection by a mask, whose size depends on data", "# select"),
        (TotalLengthTooShort, "no sequence can be longer than that", "# total"),
        (OtherArgument, "cannot be called with the arguments the configuration names", None),
        (SqueezesTheBatch, "it takes a batch of 2 requests. A squeeze() without a dimension", "# squeezed"),
        (RaisesItself, "fails in eager mode on one request of 4 timesteps", "# raises"),
        (AlwaysDropsOut, "is random in eval mode too", "# dropout"),
        (RandomState, "is random in eval mode too", "# uniform"),
        (TakesShares, "takes lengths as fractions of the longest one", None),
        (ReturnsANumber, "forward() returns a int (3)", None),
        (ReturnsAReadNumber, "forward() returns a number read from a tensor; every", None),
        (UnknownOperatorLater, "aten.histc mixes timesteps in a way that has no rule", "# histc"),
    ],
)
def test_what_cannot_be_served_exactly_is_refused(model: type[nn.Module], expected: str, line: str | None) -> None:
    with pytest.raises(LoweringError) as refused:
        lower(model().eval(), CONFIG)

    assert expected in str(refused.value)
    if line is not None:
        assert re.search(rf"test_errors\.py:\d+: .*{re.escape(line)}", str(refused.value))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "function", [pytest.param(one, id=name, marks=[pytest.mark.long] * (name in LONG)) for name, one in SERVED.items()]
)
def test_a_model_that_is_exact_for_one_request_is_served_as_that(function: Callable[..., Any]) -> None:
    lower_exact(Computing(function).eval(), CONFIG, [[9, 1, 4]])


def test_names_of_outputs_must_fit_their_number() -> None:
    config = one_input("[batch, time, 3]", "lengths: lengths\n  outputs: [a, b]")

    class PerStep(Base):
        def forward(self, x: Tensor, lengths: Tensor) -> Any:
            return self.lstm(x)[0]

    with pytest.raises(LoweringError, match="outputs: 2 names"):
        lower(PerStep(), config)


class ShiftedByOne(Base):
    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        return self.padded(torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1), lengths)


class ShiftedAndSummed(ShiftedByOne):
    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        return super().forward(x, lengths), x[:, :-1].sum(1)


@pytest.mark.few(1)
@pytest.mark.parametrize(("batch", "length"), [("[4]", "[4]"), ("[1, 4]", "[4, 9]")])
def test_timesteps_without_the_last_are_those_of_each_request(batch: str, length: str) -> None:
    config = one_input("[batch, time, 3]", "lengths: lengths", batch=batch, length=length)

    lower_exact(ShiftedAndSummed().eval(), config, ([4, 1, 2, 3],))


class CountsWithNumpy(nn.Module):
    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        window = np.linspace(0, 1, x.size(1))  # numpy
        return torch.from_numpy(window).float()[:, None] * x


class ReadsValues(nn.Module):
    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return x * float((x > 0).sum(1).numpy().max())  # values


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (CountsWithNumpy, r"reads a size as a number of Python \(at .*# numpy\).*torch\.linspace"),
        (ReadsValues, r"depend on the values of its inputs \(at .*# values\).*torch\.where"),
    ],
)
def test_values_and_sizes_that_numpy_reads_are_named_with_their_line(model: type[nn.Module], words: str) -> None:
    with pytest.raises(LoweringError, match=words):
        lower(model().eval(), CONFIG)


class Frames(nn.Module):
    """Frames at half the rate, and back: the last one is cut off where the timesteps are odd."""

    def __init__(self) -> None:
        super().__init__()
        self.halved = nn.Conv1d(3, 3, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        frames = nn.functional.interpolate(self.halved(x.transpose(1, 2)), scale_factor=2.0)
        return frames[:, :, : x.size(1)].transpose(1, 2) + x


@pytest.mark.ci
def test_a_condition_on_the_timesteps_is_said_where_no_line_is_known() -> None:
    with pytest.raises(LoweringError, match=r"branches on the number of timesteps: .*x\.size\(1\)") as refused:
        lower(Frames().eval(), one_input("[batch, time, 3]", batch="[1, 4]"))

    assert refused.value.__cause__ is not refused.value


def test_a_trace_that_fails_within_vmap_leaves_nothing_of_it() -> None:
    def fail() -> None:
        with explained_export_errors("f"):
            torch._C._functorch._vmap_increment_nesting(2, "error")  # the exporter leaves it open, if an error comes
            raise ValueError("no such rule")

    with pytest.raises(LoweringError, match="no such"):
        fail()
    assert torch.rand(2).shape == (2,)
