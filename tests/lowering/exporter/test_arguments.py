"""Arguments of forward() that are dictionaries and packed sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ragged import assert_answers_alone
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from torchserve_neuron_lstm.config.load import parse_config
from torchserve_neuron_lstm.lowering import LoweringError, lower

LENGTHS = [16, 1, 9]


class Layers(nn.Module):
    """Layers of both layouts."""

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
    """The same, time-major."""

    def forward(self, x: PackedSequence) -> Any:
        return pad_packed_sequence(self.steps(x)[0])[0]


class PackedData(Layers):
    """A layer on the data of the packed states."""

    def forward(self, x: PackedSequence) -> Any:
        y = self.gru(x)[0]
        scores = PackedSequence(torch.tanh(self.out(y.data)), y.batch_sizes, y.sorted_indices, y.unsorted_indices)
        return pad_packed_sequence(scores, batch_first=True)[0]


class Dictionary(Layers):
    """A batch as a dictionary, with the lengths in it, and another one within it."""

    def forward(self, batch: dict[str, Any]) -> Any:
        scaled: Tensor = batch["x"] * batch["more"]["scale"]
        return {"states": self.gru(scaled)[0], "lengths": batch["lengths"]}


class Optional(Layers):
    """A batch whose unused entries are None."""

    def forward(self, batch: dict[str, Any]) -> Any:
        assert batch["static"] is None
        return self.gru(batch["x"] * batch["scales"]["by"])[0]


class Fields(Layers):
    """A batch whose fields are attributes, as those of a NamedTuple are."""

    def forward(self, batch: Any) -> Any:
        packed = pack_padded_sequence(batch.x, batch.lengths.cpu(), batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.gru(packed)[0], batch_first=True)[0] * batch.more.scale.mean(2, keepdim=True)


class Pair(Layers):
    """Two sequences of the same lengths, each with an argument of its own, as arrays."""

    def forward(self, x: Tensor, x_lengths: np.ndarray, y: Tensor, y_lengths: np.ndarray) -> Any:
        longest = np.argsort(-x_lengths)
        assert max(x_lengths) == max(y_lengths)
        ends = [self.last(one[list(longest)], lengths[longest]) for one, lengths in ((x, x_lengths), (y, y_lengths))]
        return torch.cat(ends, 1)[np.argsort(longest)]

    def last(self, x: Tensor, lengths: np.ndarray) -> Tensor:
        """Return the last states of sorted rows."""
        packed = pack_padded_sequence(x, torch.from_numpy(lengths), batch_first=True)
        states: Tensor = self.gru(packed)[1]
        return states.transpose(0, 1).flatten(1)


PAIR = (
    "{x: {dtype: float32, shape: [batch, time, 5]}, y: {dtype: float32, shape: [batch, time, 5]}}\n"
    "  lengths: {names: [x_lengths, y_lengths], type: numpy}"
)
BATCH_FIRST = "{x: {dtype: float32, shape: [batch, time, 5], packed: true}}"
TIME_MAJOR = "{x: {dtype: float32, shape: [time, batch, 5], packed: true}}"
NESTED = (
    "{batch.x: {dtype: float32, shape: [batch, time, 5]}, batch.more.scale: {dtype: float32, shape: [batch, 1, 5]}}\n"
    "  lengths: batch.lengths"
)


ABSENT = (
    "{batch.x: {dtype: float32, shape: [batch, time, 5]}}\n"
    "  model: {forward: {batch.static: null, batch.scales.by: 2.0}}"
)


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
def test_an_argument_is_made_of_the_inputs(make: type[nn.Module], inputs: str) -> None:
    """Ragged batches with garbage in the padding are answered as each request alone."""
    torch.manual_seed(0)
    model = make().eval()
    text = f"neuron_lstm:\n  inputs: {inputs}\n  buckets: {{batch: [1, 8], length: [4, 16]}}\n"
    config = parse_config(text, "model-config.yaml")

    program = lower(model, config)

    assert_answers_alone(model, config, program, [LENGTHS])


def test_an_attribute_that_no_input_has_is_named_with_those_there_are() -> None:
    """The line of the model is in the message."""

    class Misspelled(Layers):
        def forward(self, batch: Any) -> Any:
            return self.gru(batch.x * batch.mask)[0]

    config = parse_config(
        f"neuron_lstm:\n  inputs: {NESTED}\n  buckets: {{batch: [1, 8], length: [4, 16]}}\n", "model-config.yaml"
    )

    with pytest.raises(LoweringError, match=r"mask: the configuration names x, more, lengths only"):
        lower(Misspelled().eval(), config)


def test_positions_of_an_argument_that_is_read_by_attributes_are_refused_with_the_names_to_write() -> None:
    """The fields of a NamedTuple have names, and the configuration has to have them."""
    inputs = NESTED.replace("batch.x", "batch.0").replace("batch.more.scale", "batch.1").replace(".lengths", ".2")
    config = parse_config(
        f"neuron_lstm:\n  inputs: {inputs}\n  buckets: {{batch: [1, 8], length: [4, 16]}}\n", "model-config.yaml"
    )

    with pytest.raises(LoweringError, match=r"test_arguments\.py.*no attribute x.*such as batch\.x, under `inputs`"):
        lower(Fields().eval(), config)


def test_keys_and_positions_of_one_argument_are_refused() -> None:
    """It is a dictionary or a tuple."""
    text = (
        "neuron_lstm:\n  inputs: {batch.x: {dtype: float32, shape: [batch, time, 5]}, "
        "batch.0: {dtype: float32, shape: [batch, time, 5]}}\n  buckets: {batch: [1, 8], length: [4, 16]}\n"
    )

    with pytest.raises(LoweringError, match=r"batch\.x, batch\.0 are not all elements of a tuple batch"):
        lower(Dictionary().eval(), parse_config(text, "model-config.yaml"))
