"""Verification draws what a model takes, writes the padding that serving writes, and explains a miss.

Inputs that are lengths of recurrences need a range.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from input_configs import config_of
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from torchserve_neuron_lstm.archiver_ext.commands.init import starting_config
from torchserve_neuron_lstm.archiver_ext.evaluation.reference import make_reference
from torchserve_neuron_lstm.archiver_ext.evaluation.verification_cases import draw_cases, draw_inputs, poisoned_padding
from torchserve_neuron_lstm.bucketing.shapes import Bucket, TensorSpec
from torchserve_neuron_lstm.config.diagnostics import ConfigError
from torchserve_neuron_lstm.config.json_codec import from_json, to_json
from torchserve_neuron_lstm.config.load import parse_config
from torchserve_neuron_lstm.config.schema import ServingConfig
from torchserve_neuron_lstm.lowering import LoweringError, lower
from torchserve_neuron_lstm.lowering.exporter.random_values import random_tensor

from .summing_model import program, silent

IDS = "ids: {dtype: int64, shape: [batch, time]%s}"


def config(inputs: str) -> ServingConfig:
    return config_of(f"{{{inputs}}}", "lengths: lengths", batch="[1, 2]", length="[4, 9]")


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 5, padding_idx=0)
        self.lstm = nn.LSTM(5, 4, batch_first=True)

    def forward(self, ids: Tensor, lengths: Tensor) -> Any:
        packed = pack_padded_sequence(self.embedding(ids), lengths.cpu(), batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0]


class Counting(Words):
    """A model whose lengths are the numbers of ids that are no padding."""

    def forward(self, ids: Tensor, lengths: Tensor) -> Any:
        return super().forward(ids, (ids != 0).sum(1))


class CountingNonzero(Words):
    def forward(self, ids: Tensor, lengths: Tensor) -> Any:
        return super().forward(ids, torch.count_nonzero(ids, dim=1))


class Remembering(Words):
    last = 0.0

    def forward(self, ids: Tensor, lengths: Tensor) -> Any:
        answer = super().forward(ids, lengths)
        if torch.compiler.is_exporting():
            return answer
        self.last += 1.0
        return answer + self.last


class Relative(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(3, 4, batch_first=True)

    def forward(self, x: Tensor, share: Tensor, lengths: Tensor) -> Any:
        own = (share * x.shape[1]).long()
        packed = pack_padded_sequence(x, own.cpu(), batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.gru(packed)[0], batch_first=True, total_length=x.shape[1])[0]


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.weather = nn.GRU(3, 4, batch_first=True), nn.GRU(2, 4, batch_first=True)

    def forward(self, x: Tensor, weather: Tensor, hours: Tensor, lengths: Tensor) -> Any:
        packed = pack_padded_sequence(weather, hours.long().cpu(), batch_first=True, enforce_sorted=False)
        return self.gru(x)[0] + self.weather(packed)[1][-1][:, None]


class Scaled(Packed):
    def forward(self, x: Tensor, weather: Tensor, hours: Tensor, lengths: Tensor) -> Any:
        return self.gru(x)[0] * hours[:, None, None] + self.weather(weather)[1][-1][:, None]


def drawn(model: nn.Module, settings: ServingConfig) -> int:
    lowered = lower(model.eval(), settings)
    reference = make_reference(model, settings, lowered.outputs)
    return len(draw_cases(program(inputs=lowered.inputs, outputs=lowered.outputs), settings.grid, reference, silent))


@pytest.mark.parametrize(
    ("dtype", "limits"), [("int64", (3, 5)), ("bool", (1, 1)), ("float32", (0.25, 1.0)), ("int8", (-3, -1))]
)
def test_values_are_drawn_from_the_range_both_ends_included(dtype: Any, limits: tuple[float, float]) -> None:
    spec = TensorSpec("x", dtype, ("batch", "time"), value_range=limits)
    values = random_tensor(spec, (50, 9), torch.Generator().manual_seed(0)).double()

    assert limits[0] <= values.min()
    assert values.max() <= limits[1]
    if dtype != "float32":
        assert (values.min().item(), values.max().item()) == limits


def test_a_model_that_counts_its_ids_is_verified_within_a_range_and_told_of_it_without() -> None:
    with pytest.raises(LoweringError, match=r"lengths that are computed from data .*declare .*the `range` of the ids"):
        drawn(Counting(), config(IDS % ""))
    assert drawn(Counting(), config(IDS % ", range: [1, 10]")) > 3
    assert drawn(CountingNonzero(), config(IDS % ", range: [1, 10]")) > 3


def test_a_model_that_keeps_state_is_refused_before_anything_is_compiled() -> None:
    assert drawn(Words(), config(IDS % "")) > 3
    with pytest.raises(LoweringError, match="returns different outputs when it is called again"):
        drawn(Remembering(), config(IDS % ""))


def test_lengths_that_are_computed_from_data_are_refused_with_the_line() -> None:
    with pytest.raises(LoweringError, match=r"lengths that are computed from data \(at .*own\.cpu\(\)"):
        lower(
            Relative().eval(),
            config("x: {dtype: float32, shape: [batch, time, 3]}, share: {dtype: float32, shape: [batch]}"),
        )


SECOND = (
    "x: {dtype: float32, shape: [batch, time, 3]}, weather: {dtype: float32, shape: [batch, 6, 2]}, "
    "hours: {dtype: %s, shape: [batch]%s}"
)


def test_lengths_of_a_second_sequence_need_a_range() -> None:
    with pytest.raises(LoweringError, match=r"lengths of no known range \(at .*hours\.long.*range: \[1, 6\]"):
        drawn(Packed(), config(SECOND % ("int64", "")))

    assert drawn(Packed(), config(SECOND % ("int64", ", range: [1, 6]"))) > 3


@pytest.mark.parametrize(
    ("model", "dtype", "decided"),
    [(Packed, "int64", {"hours"}), (Packed, "int32", {"hours"}), (Scaled, "int64", set())],
)
def test_a_range_is_enforced_where_lengths_depend_on_it(model: type[nn.Module], dtype: str, decided: set[str]) -> None:
    assert lower(model().eval(), config(SECOND % (dtype, ", range: [1, 6]"))).decided == decided


@pytest.mark.parametrize("kind", ["random", "large", "pad_value"])
def test_integers_are_padded_with_what_serving_writes_and_floats_within_their_range(kind: Any) -> None:
    ids, x = TensorSpec("ids", "int64", ("batch", "time"), 7), TensorSpec("x", "float32", ("batch", "time"), 7)
    pad = poisoned_padding(kind, torch.Generator().manual_seed(0))

    assert pad([torch.tensor([1, 2])], ids, Bucket(2, 3)).tolist() == [[1, 2, 7], [7, 7, 7]]
    assert (pad([torch.tensor([1.0, 2.0])], x, Bucket(2, 3))[0, 2] == 7) == (kind == "pad_value")
    assert pad([torch.zeros(1)], replace(x, pad_value=1, value_range=(0, 1)), Bucket(2, 9)).max() <= 1


def test_nan_is_drawn_for_some_requests_and_never_for_padding() -> None:
    spec, rng = TensorSpec("x", "float32", ("batch", "time"), nan=True), torch.Generator().manual_seed(0)

    assert 3 < sum(bool(draw_inputs([spec], 50, rng)[0].isnan().any()) for _ in range(20)) < 17
    assert not any(
        poisoned_padding("random", rng)([torch.zeros(1)], spec, Bucket(2, 9)).isnan().any() for _ in range(9)
    )


def test_a_range_is_not_written_into_an_archive() -> None:
    written = to_json(TensorSpec, TensorSpec("ids", "int64", ("batch", "time"), value_range=(1, 4)))

    assert "value_range" not in written
    assert from_json(TensorSpec, written) == TensorSpec("ids", "int64", ("batch", "time"))


@pytest.mark.parametrize(
    ("limits", "complaint"),
    [("[5, 1]", "least value first"), ("[1]", "as in [1, 4999]"), ("[0, 1.5]", "a whole number"), ("3", "as in [1")],
)
def test_a_range_that_is_none_is_refused(limits: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint.replace("[", r"\[")):
        config(IDS % f", range: {limits}")


def test_init_writes_a_range_without_the_padding_of_the_embedding(tmp_path: Path) -> None:
    text = starting_config(Words, {}, 64)

    assert "range: [1, 10]" in text
    assert parse_config(text, "model-config.yaml", tmp_path).input_specs[0].value_range == (1, 10)
