from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from input_configs import config_of, one_input
from ragged import lower_exact
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from torchserve_neuron_lstm.config.forward import MaskConfig
from torchserve_neuron_lstm.config.schema import ServingConfig
from torchserve_neuron_lstm.lowering import LoweringError, lower
from torchserve_neuron_lstm.lowering.exporter.arguments import mask_of_lengths
from torchserve_neuron_lstm.lowering.exporter.export import bind_arguments

LENGTHS = [16, 1, 9]


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(5, 6, batch_first=True, bidirectional=True)
        self.steps = nn.GRU(5, 6)
        self.out = nn.Linear(12, 3)


class Packed(Layers):
    """The input is packed by whoever calls the model."""

    def forward(self, x: PackedSequence) -> Any:
        y, h = self.gru(x)
        return pad_packed_sequence(y, batch_first=True)[0], h


class PackedTimeMajor(Layers):
    def forward(self, x: PackedSequence) -> Any:
        return pad_packed_sequence(self.steps(x)[0])[0]


class PackedData(Layers):
    def forward(self, x: PackedSequence) -> Any:
        y = self.gru(x)[0]
        scores = PackedSequence(torch.tanh(self.out(y.data)), y.batch_sizes, y.sorted_indices, y.unsorted_indices)
        return pad_packed_sequence(scores, batch_first=True)[0]


class Dictionary(Layers):
    def forward(self, batch: dict[str, Any]) -> Any:
        scaled: Tensor = batch["x"] * batch["more"]["scale"]
        return {"states": self.gru(scaled)[0], "lengths": batch["lengths"]}


class Optional(Layers):
    def forward(self, batch: dict[str, Any]) -> Any:
        assert batch["static"] is None
        return self.gru(batch["x"] * batch["scales"]["by"])[0]


class Fields(Layers):
    """A batch whose fields are attributes, as those of a NamedTuple are."""

    def forward(self, batch: Any) -> Any:
        packed = pack_padded_sequence(batch.x, batch.lengths.cpu(), batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.gru(packed)[0], batch_first=True)[0] * batch.more.scale.mean(2, keepdim=True)


class Pair(Layers):
    def forward(self, x: Tensor, x_lengths: np.ndarray, y: Tensor, y_lengths: np.ndarray) -> Any:
        longest = np.argsort(-x_lengths)
        assert max(x_lengths) == max(y_lengths)
        ends = [self.last(one[list(longest)], lengths[longest]) for one, lengths in ((x, x_lengths), (y, y_lengths))]
        return torch.cat(ends, 1)[np.argsort(longest)]

    def last(self, x: Tensor, lengths: np.ndarray) -> Tensor:
        states: Tensor = self.gru(pack_padded_sequence(x, torch.from_numpy(lengths), batch_first=True))[1]
        return states.transpose(0, 1).flatten(1)


PAIR = (
    "{x: {dtype: float32, shape: [batch, time, 5]}, y: {dtype: float32, shape: [batch, time, 5]}}",
    "lengths: {names: [x_lengths, y_lengths], type: numpy}",
)
BATCH_FIRST = ("{x: {dtype: float32, shape: [batch, time, 5], packed: true}}",)
TIME_MAJOR = ("{x: {dtype: float32, shape: [time, batch, 5], packed: true}}",)
NESTED = (
    "{batch.x: {dtype: float32, shape: [batch, time, 5]}, batch.more.scale: {dtype: float32, shape: [batch, 1, 5]}}",
    "lengths: batch.lengths",
)
NUMBERED = tuple(
    text.replace("batch.x", "batch.0").replace("batch.more.scale", "batch.1").replace(".lengths", ".2")
    for text in NESTED
)
BOTH = ("{batch.x: {dtype: float32, shape: [batch, time, 5]}, batch.0: {dtype: float32, shape: [batch, time, 5]}}",)
ABSENT = (
    "{batch.x: {dtype: float32, shape: [batch, time, 5]}}",
    "model: {forward: {batch.static: null, batch.scales.by: 2.0}}",
)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (Optional, ABSENT),
        (Packed, BATCH_FIRST),
        (PackedTimeMajor, TIME_MAJOR),
        (PackedData, BATCH_FIRST),
        (Dictionary, NESTED),
        (Fields, NESTED),
        (Pair, PAIR),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_argument_is_made_of_the_inputs(make: type[nn.Module], inputs: tuple[str, ...]) -> None:
    lower_exact(make().eval(), config_of(*inputs), [LENGTHS])


class Misspelled(Layers):
    def forward(self, batch: Any) -> Any:
        return self.gru(batch.x * batch.mask)[0]


@pytest.mark.parametrize(
    ("make", "inputs", "message"),
    [
        (Misspelled, NESTED, "mask: the configuration names x, more, lengths only"),
        (Fields, NUMBERED, r"test_arguments\.py.*no attribute x.*such as batch\.x, under `inputs`"),
        (Dictionary, BOTH, r"batch\.x, batch\.0 are not all elements of a tuple batch"),
    ],
    ids=["an attribute that no input has", "positions that are read by attributes", "keys and positions"],
)
def test_elements_that_do_not_fit_are_refused_with_the_names_to_write(
    make: type[nn.Module], inputs: tuple[str, ...], message: str
) -> None:
    with pytest.raises(LoweringError, match=message):
        lower(make().eval(), config_of(*inputs))


def with_mask(mask: str, *, lengths: bool = False) -> ServingConfig:
    return one_input("[batch, time, 5]", f"mask: {mask}" + "\n  lengths: lengths" * lengths)


class Masked(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.gru = nn.GRU(5, 6, batch_first=True, bidirectional=True)
        self.score = nn.Linear(12, 1)

    def forward(self, x: Tensor, mask: Tensor, lengths: Tensor | None = None) -> Any:
        return self.function(self, x, mask) if lengths is None else self.function(self, x, mask, lengths)


def attended(m: Masked, x: Tensor, mask: Tensor) -> Any:
    """Attention over real timesteps, with a recurrence that reads padding in eager mode."""
    y, _ = m.gru(x)
    score = m.score(y).squeeze(2).masked_fill(~mask, float("-inf"))
    return (torch.softmax(score, 1).unsqueeze(2) * y).sum(1)


def packed_by_the_mask(m: Masked, x: Tensor, mask: Tensor) -> Any:
    lengths = mask.eq(0).long().sum(1).tolist()
    y, h = m.gru(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
    return pad_packed_sequence(y, batch_first=True)[0][:, : max(lengths)], h


def packed_by_numbers(m: Masked, x: Tensor, mask: Tensor) -> Any:
    y, h = m.gru(pack_padded_sequence(x, mask.sum(1).int().cpu(), batch_first=True, enforce_sorted=False))
    return pad_packed_sequence(y, batch_first=True)[0] * mask.unsqueeze(2), h


def only_if_padded(m: Masked, x: Tensor, mask: Tensor) -> Any:
    if mask.data.sum() == 0 and not mask.any():
        return m.gru(x)[0]
    lengths = mask.eq(0).long().sum(1)
    order = torch.argsort(lengths, descending=True)
    packed = pack_padded_sequence(x[order], lengths[order].cpu(), batch_first=True)
    y: Tensor = pad_packed_sequence(m.gru(packed)[0], batch_first=True)[0]
    return y[torch.argsort(order)]


def mean_of_real(m: Masked, x: Tensor, mask: Tensor) -> Any:
    y, _ = m.gru(x)
    return (y * mask.unsqueeze(2)).sum(1) / mask.sum(1, keepdim=True)


def written(m: Masked, x: Tensor, mask: Tensor) -> Any:
    y, _ = m.gru(x)
    weights = torch.ones(x.size(0), x.size(1))
    weights[mask] = 0.0
    return y * weights.unsqueeze(2)


def time_major(m: Masked, x: Tensor, mask: Tensor) -> Any:
    y, _ = m.gru(x)
    return (y.transpose(0, 1) * mask.unsqueeze(2)).max(0)[0]


def with_lengths(m: Masked, x: Tensor, mask: Tensor, lengths: Tensor) -> Any:
    y, _ = m.gru(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
    states = pad_packed_sequence(y, batch_first=True)[0]
    return states + (1 - mask.float())[:, : states.size(1), None]


PADDING = "{name: mask, true_for: padding}"
CASES: tuple[tuple[Callable[..., Any], str], ...] = (
    (attended, "mask"),
    (packed_by_the_mask, PADDING),
    (packed_by_numbers, "{name: mask, dtype: float32}"),
    (only_if_padded, "{name: mask, true_for: padding, dtype: uint8}"),
    (mean_of_real, "{name: mask, dtype: float32}"),
    (written, PADDING),
    (lambda m, x, mask: m.gru(x)[0][mask], "mask"),
    (time_major, "{name: mask, dtype: int64, shape: [time, batch]}"),
    (with_lengths, "mask"),
    (
        lambda m, x, mask: m.gru(x)[0].sum(1) / torch.sum(input=mask, dim=1, keepdim=True),
        "{name: mask, dtype: float32}",
    ),
)


@pytest.mark.few(2)
@pytest.mark.parametrize(("function", "mask"), CASES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_masked_model_is_served_at_any_length_as_each_request_alone(function: Callable[..., Any], mask: str) -> None:
    program = lower_exact(Masked(function), with_mask(mask, lengths=function is with_lengths))

    assert [spec.name for spec in program.inputs] == ["x"]


def changed(m: Masked, x: Tensor, mask: Tensor) -> Any:
    mask[:, 0] = False
    return m.gru(x)[0] * 2 if mask.any() else m.gru(x)[0]


def maximum_with_another(m: Masked, x: Tensor, mask: Tensor) -> Any:
    largest = torch.max(mask.float(), x[..., 0])
    return m.gru(x)[0] if (largest == 1).all() else m.gru(x)[0] * 2


@pytest.mark.parametrize("function", [changed, maximum_with_another])
def test_a_branch_on_what_is_not_the_mask_alone_is_refused_with_its_line(function: Callable[..., Any]) -> None:
    with pytest.raises(LoweringError, match=r"depend on the values of its inputs \(at test_arguments"):
        lower(Masked(function), with_mask("mask"))


COUNTS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda ids: (ids != 0).sum(dim=1),
    lambda ids: ids.bool().sum(1),
    lambda ids: ids.to(torch.bool).long().sum(-1),
)


@pytest.mark.ci
@pytest.mark.parametrize("count", COUNTS, ids=["compared", "bool", "to bool"])
def test_ids_without_the_id_of_padding_give_the_lengths(count: Callable[[Tensor], Tensor]) -> None:
    """The range of the ids says that 0 is padding only, so lengths can be counted from them in Python."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(9, 5, padding_idx=0)
            self.gru = nn.GRU(5, 6, batch_first=True)

        def forward(self, ids: Tensor) -> Tensor:
            packed = pack_padded_sequence(self.embed(ids), count(ids).tolist(), batch_first=True, enforce_sorted=False)
            h: Tensor = self.gru(packed)[1]
            return h[0]

    lower_exact(Counting(), config_of("{ids: {dtype: int64, shape: [batch, time], range: [1, 8]}}"))


def test_a_mask_has_the_layout_and_the_type_of_the_configuration() -> None:
    lengths = torch.tensor([2, 1])

    made = mask_of_lengths(MaskConfig(name="m", dtype="float32", shape=("time", 1, "batch")), lengths, 3)

    assert made.tolist() == [[[1.0, 1.0]], [[1.0, 0.0]], [[0.0, 0.0]]]


def test_a_call_that_changes_a_constant_leaves_the_configuration_as_it_is() -> None:
    config = one_input("[batch, time]", "model: {forward: {history: []}}")
    for _ in range(2):
        arguments = bind_arguments(config, [torch.zeros(1, 4)], torch.tensor([4]))
        assert arguments["history"] == []
        arguments["history"].append(1)
