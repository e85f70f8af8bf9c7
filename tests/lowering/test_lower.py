"""Lowering through the trace of one request: models as people write them, against each request alone."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from input_configs import one_input
from long_cases import with_long
from ragged import assert_answers_alone, lower_exact
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from torchserve_neuron_lstm.archiver_ext.user_model import serve_method
from torchserve_neuron_lstm.config.load import parse_config
from torchserve_neuron_lstm.lowering import LoweringError, lower

from .request_models import FEATURES, WITHOUT_LENGTHS, Model, in_chunks, scaled_by_the_batch, subsampled
from .request_models_with_lengths import WITH_LENGTHS

LONG = (
    *("segmented", "segments_in_turn", "cells_over_packed", "windows_repeated", "masks_of_numpy", "framed"),
    *("widest_windows", "flat_softmax", "halved_lengths", "best_frames", "averaged", "packed_rows", "paired"),
    *("subbands", "upsampled", "likelihoods", "gated", "surprise", "causal_layer", "both_directions", "unpacked"),
    *("bags_of_words", "sound_events", "interpolated", "language_model", "counted", "relative_lengths", "spectra"),
    *("sorted_by_numpy", "unsorted_by_hand", "exponential_units", "repeated_by_lists", "own_class", "reconstructed"),
    *("flattened_channels", "rounded_sizes", "projected_on_a_vector", "packed_data"),
)
X = "[batch, time, 5]"
CONFIG, CONFIG_WITH_LENGTHS = one_input(X), one_input(X, "lengths: lengths")


@pytest.mark.few(1)
@pytest.mark.parametrize("function", with_long([*WITHOUT_LENGTHS, *WITH_LENGTHS], *LONG), ids=lambda f: f.__name__)
def test_a_model_is_served_at_every_length_as_each_request_alone(function: Callable[..., Any]) -> None:
    lower_exact(Model(function), CONFIG_WITH_LENGTHS if function in WITH_LENGTHS else CONFIG)


class Subsampled(nn.Module):
    def __init__(self, halve: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.halve = halve
        self.halved = nn.Conv1d(FEATURES, FEATURES, 3, stride=2, padding=1)
        self.gru = nn.GRU(FEATURES, 6, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        frames = self.halved(x.transpose(1, 2)).transpose(1, 2)
        packed = pack_padded_sequence(frames, self.halve(lengths), batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.gru(packed)[0], batch_first=True)


def changed_in_place(lengths: Tensor) -> Tensor:
    halved = lengths.clone()
    halved -= 1
    halved.div_(2, rounding_mode="trunc")
    return halved.add_(1)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "halve",
    [
        pytest.param(lambda n: torch.div(n - 1, 2, rounding_mode="floor") + 1, id="floor"),
        pytest.param(lambda n: torch.ceil(n / 2).long().cpu(), id="ceil", marks=pytest.mark.long),
        pytest.param(lambda n: ((n.float() - 1) * 0.5 + 1).to(torch.int64), id="cast"),
        pytest.param(
            lambda n: torch.stack([(own + 1) >> 1 for own in n]).clamp(min=1), id="stacked", marks=pytest.mark.long
        ),
        pytest.param(lambda n: [int(own) for own in (n + 1) / 2], id="integers"),
        pytest.param(changed_in_place, id="in place"),
        pytest.param(lambda n: n // 2 + n % 2, id="remainder", marks=pytest.mark.long),
        pytest.param(lambda n: torch.where(n % 2 == 0, n // 2, n // 2 + 1), id="where", marks=pytest.mark.long),
        pytest.param(lambda n: ((n + 1) // 2).clamp(min=1, max=7), id="clamp", marks=pytest.mark.long),
        pytest.param(lambda n: torch.from_numpy(np.ceil(n.numpy() / 2).astype(np.int64)), id="numpy"),
        pytest.param(
            lambda n: np.array(np.ceil(np.array(n.tolist(), dtype=np.float64) / 2), dtype=np.int64).tolist(),
            id="arrays of numpy",
        ),
        pytest.param(
            lambda n: torch.LongTensor([math.ceil(own / 2) for own in n.tolist()]), id="math", marks=pytest.mark.long
        ),
    ],
)
def test_lengths_after_a_stride_are_followed_however_they_are_rounded(halve: Callable[[Tensor], Any]) -> None:
    lower_exact(Subsampled(halve), CONFIG_WITH_LENGTHS)


def test_positions_that_are_changed_in_place_decide_no_branch() -> None:
    def branch(m: Model, x: Tensor, lengths: Tensor) -> Any:
        positions = torch.arange(x.size(1))
        row = positions.unsqueeze(0)
        positions += 1
        return x * 2 if (row < lengths[:, None]).all() else x  # branch

    with pytest.raises(LoweringError, match=r"depend on the values of its inputs .*# branch"):
        lower(Model(branch), CONFIG_WITH_LENGTHS)


@pytest.mark.parametrize("message", [(), ("too large",)])
def test_a_check_of_values_that_nothing_reads_is_refused(message: tuple[str, ...]) -> None:
    def check(m: Model, x: Tensor, lengths: Tensor) -> Any:
        torch._assert_async((x < 1e4).all(), *message)  # check
        return x

    with pytest.raises(LoweringError, match=r"refuses some values of its inputs .*# check"):
        lower(Model(check), CONFIG_WITH_LENGTHS)


def test_a_default_over_the_batch_is_that_of_the_request() -> None:
    lower_exact(Model(scaled_by_the_batch), CONFIG)


@pytest.mark.ci
def test_an_output_has_the_length_of_its_own_frames() -> None:
    program = lower(Model(subsampled), CONFIG)

    assert program.outputs[0].item_sizes(9) == (5, 12)
    assert program.outputs[0].item_sizes(1) == (1, 12)


def paired_by_branch(m: Model, x: Tensor) -> Any:
    if x.size(1) % 2 == 1:  # odd
        x = x[:, :-1]
    return x.reshape(x.size(0), x.size(1) // 2, 2 * FEATURES)


def doubled_at_few_frames(m: Model, x: Tensor) -> Any:
    """A branch that the exporter writes as one of its own conditions on sizes of 1 or more."""
    y = m.lstm(x.flip(1))[0]
    return 2 * y if x.size(1) // 4 < 2 else y  # short


@pytest.mark.parametrize(
    ("function", "message"),
    [
        pytest.param(
            lambda m, x: x.view(2, -1, FEATURES) if x.size(1) % 2 == 0 else x,
            r"takes a branch that .*test_lower\.py:\d+",
            id="odd lengths",
            marks=pytest.mark.ci,
        ),
        pytest.param(
            paired_by_branch, r"# odd\).*F\.pad\(x, \(0, 0, 0, T % 2\)\)", id="odd timesteps", marks=pytest.mark.ci
        ),
        pytest.param(doubled_at_few_frames, r"# short\)", id="few frames"),
        pytest.param(
            lambda m, x: in_chunks(m, x, chunk=8),
            r"chunks = range\(0.*the whole sequence .*Buckets of one chunk",
            id="chunks",
        ),
        pytest.param(
            lambda m, x: m.lstm(x.flip(1))[0] + (1 if x.size(1) == 12 else 0),
            r"branch that a request of 12 timesteps .*\.py:\d+.*== 12",
            id="one length",
        ),
        pytest.param(
            lambda m, x: m.lstm(x.flip(1))[0] + (1 if x.size(1) == 14 else 0),
            r"branch that a request of 1 timesteps .*\.py:\d+.*== 14",
            id="the length that is traced",
            marks=pytest.mark.ci,
        ),
        pytest.param(
            lambda m, x: m.lstm(x.flip(1))[0] + (1 if x.size(1) // 2 < 5 else 0),
            r"branch that a request of 1 timesteps .*\.py:\d+.*// 2 < 5",
            id="half of the length",
        ),
    ],
)
def test_a_branch_on_a_number_of_timesteps_is_refused_with_its_line(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(LoweringError, match=message):
        lower(Model(function), CONFIG)


def padded_if_short(m: Model, x: Tensor) -> Any:
    """A reflection that pads a short request before, as in Encodec's convolutions."""
    missing = 0
    if x.size(1) <= 4:
        missing = 5 - x.size(1)
        x = nn.functional.pad(x, (0, 0, 0, missing))
    y = nn.functional.pad(x.transpose(1, 2), (4, 4), "reflect")
    return m.gru(y[..., : y.size(2) - missing].transpose(1, 2))[0]


def other_if_short(m: Model, x: Tensor) -> Any:
    """A branch that more timesteps take than are traced at first."""
    y = m.lstm(x.flip(1))[0]
    return 2 * y if x.size(1) < 30 else y  # short


def one_frame(m: Model, x: Tensor) -> Any:
    """Strides after which few timesteps are one frame, which the exporter takes for a constant size."""
    frames = nn.functional.avg_pool1d(nn.functional.avg_pool1d(x.transpose(1, 2), 6, 6), 6, 6)
    return m.gru(frames.transpose(1, 2))[0]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("function", "buckets", "shortest"),
    [
        (lambda m, x: m.lstm(x)[0].sum(2, keepdim=True).squeeze(), [7, 16], 2),  # of one timestep its dimension goes
        (padded_if_short, [5, 16], 5),
        (other_if_short, [32, 64], 30),
        (one_frame, [128], 36),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_model_that_does_something_else_with_short_requests_is_served_from_the_others_on(
    function: Callable[..., Any], buckets: list[int], shortest: int
) -> None:
    longest = buckets[-1]
    batches = ([shortest], [longest, shortest, shortest + 1], [longest - 1] * 2)

    program = lower_exact(Model(function), one_input(X, length=str(buckets)), batches)

    assert program.shortest == shortest


def test_buckets_that_hold_short_requests_of_another_form_are_named() -> None:
    config = one_input(X, length="[4, 64]")

    with pytest.raises(LoweringError, match=r"# short\).*Requests of 30 timesteps or more .* without buckets of fewer"):
        lower(Model(other_if_short), config)


class OfIds(nn.Module):
    """A cell over the rows that `row_of` makes of ids, 0 to 4."""

    def __init__(self, row_of: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.row_of = row_of
        self.table = nn.Parameter(torch.randn(5, FEATURES))
        self.cell = nn.GRUCell(FEATURES, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.table.new_zeros(x.size(0), 6)
        for t in range(x.size(1)):
            h = self.cell(self.row_of(self.table, x[:, t]), h)
        return h


IDS = one_input("[batch, time]", dtype="int64")


@pytest.mark.ci
def test_a_model_that_fails_on_drawn_ids_is_refused_with_the_range_to_declare() -> None:
    """No layer shows how many ids there are. The message names the input."""
    model = OfIds(lambda table, ids: table[ids])

    with pytest.raises(LoweringError, match=r"0 to 7 were drawn for x: if it takes others only, write `range: "):
        lower(model, IDS)

    lower(model, one_input("[batch, time], range: [0, 4]", dtype="int64"))


@pytest.mark.ci
def test_ids_of_a_one_hot_in_a_loop_are_bounded_by_its_classes() -> None:
    model = OfIds(lambda table, ids: nn.functional.one_hot(ids, FEATURES).float())

    assert lower(model, IDS).inputs[0].vocabulary == FEATURES


def test_bins_over_time_are_refused_with_their_line() -> None:
    """Pooling to three bins depends on the whole length, and has no rule."""
    model = Model(lambda m, x: nn.functional.adaptive_avg_pool1d(x.transpose(1, 2), 3))  # bins

    with pytest.raises(LoweringError, match=r"adaptive_avg_pool1d mixes timesteps in a way that has no rule.*# bins"):
        lower(model, CONFIG)


class TakesTuples(nn.Module):
    def __init__(self, *, cuda: bool = False) -> None:
        super().__init__()
        self.cuda_calls = cuda
        self.first = nn.LSTM(FEATURES, 6, batch_first=True)
        self.second = nn.LSTM(6, 6, batch_first=True)

    def forward(self, batch: Any, states: Any) -> Any:
        x, lengths = batch
        x = x.cuda() if self.cuda_calls else x
        y, first = self.first(pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False), states[0])
        y, second = self.second(y, states[1])
        return pad_packed_sequence(y, batch_first=True)[0], (first, second)


TUPLES = """
neuron_lstm:
  inputs:
    batch.0: {dtype: float32, shape: [batch, time, 5]}
    states.0.0: {dtype: float32, shape: [1, batch, 6]}
    states.0.1: {dtype: float32, shape: [1, batch, 6]}
    states.1.0: {dtype: float32, shape: [1, batch, 6]}
    states.1.1: {dtype: float32, shape: [1, batch, 6]}
  lengths: batch.1
  buckets: {batch: [1, 8], length: [4, 16]}
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("cuda", [False, True])
def test_tuples_may_hold_tuples_and_the_lengths(cuda: bool) -> None:
    model = TakesTuples().eval()
    written = TakesTuples(cuda=cuda).eval()
    written.load_state_dict(model.state_dict())
    config = parse_config(TUPLES, "model-config.yaml")
    program = lower(written, config)

    assert [spec.name for spec in program.outputs] == ["0", "1.0.0", "1.0.1", "1.1.0", "1.1.1"]
    assert_answers_alone(model, config, program, [[16, 1, 9]])


def test_a_tuple_that_lacks_an_element_is_refused_by_name() -> None:
    config = parse_config(TUPLES.replace("states.0.1", "states.0.2"), "model-config.yaml")

    with pytest.raises(LoweringError, match=r"states\.0\.0, states\.0\.2 are not all elements of a tuple states\.0"):
        lower(TakesTuples().eval(), config)


class OneSentence(nn.Module):
    """A tagger of one sentence [T, 5], without a batch dimension, as in PyTorch's first tutorial on LSTMs."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(FEATURES, 6)
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.lstm(x.view(len(x), 1, -1))
        return torch.log_softmax(self.out(y.view(len(x), -1)), 1)


def test_a_model_of_one_sequence_runs_in_ragged_batches() -> None:
    model = OneSentence().eval()
    serve_method(model, "forward", batched=False)

    program = lower_exact(model, one_input(X, "model: {batched: false}"))

    assert [spec.shape for spec in program.outputs] == [("batch", "time", 3)]
