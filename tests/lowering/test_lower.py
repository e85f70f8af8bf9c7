"""Lowering through the trace of one request: models as people write them, against each request alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from long_cases import with_long
from ragged import alone, assert_answers_alone, padded, part_of, ragged
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from torchserve_neuron_lstm.archiver_ext.user_model import serve_method
from torchserve_neuron_lstm.config.load import parse_config
from torchserve_neuron_lstm.lowering import LoweringError, lower
from torchserve_neuron_lstm.lowering.program import LoweredModel

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
BATCHES = ([1], [9, 1, 4], [16, 15, 1, 7, 16], [2, 2, 3])


def yaml_of(*, lengths: bool, shape: str = "[batch, time, 5]") -> str:
    return (
        f"neuron_lstm:\n  inputs: {{x: {{dtype: float32, shape: {shape}}}}}\n"
        f"{'  lengths: lengths' if lengths else ''}\n  buckets: {{batch: [1, 8], length: [4, 16]}}\n"
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("function", with_long([*WITHOUT_LENGTHS, *WITH_LENGTHS], *LONG), ids=lambda f: f.__name__)
def test_a_model_is_served_at_every_length_as_each_request_alone(function: Callable[..., Any]) -> None:
    model = Model(function)
    lengths = function in WITH_LENGTHS

    program = lower(model, parse_config(yaml_of(lengths=lengths), "model-config.yaml"))

    assert program.padding == "masked"
    require_exact(model, program, lengths=lengths)


def require_exact(model: nn.Module, program: LoweredModel, *, lengths: bool) -> None:
    config = parse_config(yaml_of(lengths=lengths), "model-config.yaml")
    assert_answers_alone(model, config, program, BATCHES)


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
            lambda n: np.array(np.ceil(np.array(n.tolist(), dtype=np.float32) / 2), dtype=np.int64).tolist(),
            id="arrays of numpy",
        ),
        pytest.param(
            lambda n: torch.LongTensor([math.ceil(own / 2) for own in n.tolist()]), id="math", marks=pytest.mark.long
        ),
    ],
)
def test_lengths_after_a_stride_are_followed_however_they_are_rounded(halve: Callable[[Tensor], Any]) -> None:
    model = Subsampled(halve)

    program = lower(model, parse_config(yaml_of(lengths=True), "model-config.yaml"))

    require_exact(model, program, lengths=True)


def test_positions_that_are_changed_in_place_decide_no_branch() -> None:
    def branch(m: Model, x: Tensor, lengths: Tensor) -> Any:
        positions = torch.arange(x.size(1))
        row = positions.unsqueeze(0)
        positions += 1
        return x * 2 if (row < lengths[:, None]).all() else x  # branch

    with pytest.raises(LoweringError, match=r"depend on the values of its inputs .*# branch"):
        lower(Model(branch), parse_config(yaml_of(lengths=True), "model-config.yaml"))


def test_a_default_over_the_batch_is_that_of_the_request() -> None:
    model = Model(scaled_by_the_batch)

    program = lower(model, parse_config(yaml_of(lengths=False), "model-config.yaml"))

    require_exact(model, program, lengths=False)


@pytest.mark.ci
def test_an_output_has_the_length_of_its_own_frames() -> None:
    program = lower(Model(subsampled), parse_config(yaml_of(lengths=False), "model-config.yaml"))

    assert program.outputs[0].item_sizes(9) == (5, 12)
    assert program.outputs[0].item_sizes(1) == (1, 12)


@pytest.mark.ci
def test_a_branch_on_odd_lengths_is_refused() -> None:
    """A graph that holds for even numbers of timesteps only is no program for all."""
    model = Model(lambda m, x: x.view(2, -1, FEATURES) if x.size(1) % 2 == 0 else x)

    with pytest.raises(LoweringError, match=r"takes a branch that .*test_lower\.py:\d+"):
        lower(model, parse_config(yaml_of(lengths=False), "model-config.yaml"))


@pytest.mark.ci
def test_a_branch_on_odd_timesteps_is_named_with_its_line() -> None:
    def paired_by_branch(m: Model, x: Tensor) -> Any:
        if x.size(1) % 2 == 1:  # odd
            x = x[:, :-1]
        return x.reshape(x.size(0), x.size(1) // 2, 2 * FEATURES)

    with pytest.raises(LoweringError, match=r"# odd\).*F\.pad\(x, \(0, 0, 0, T % 2\)\)"):
        lower(Model(paired_by_branch), parse_config(yaml_of(lengths=False), "model-config.yaml"))


def test_a_branch_at_few_frames_is_named_with_its_line() -> None:
    """The exporter writes it as its own conditions on sizes of 1 or more; it is no such one."""

    def doubled_if_short(m: Model, x: Tensor) -> Any:
        y = m.lstm(x.flip(1))[0]
        return 2 * y if x.size(1) // 4 < 2 else y  # short

    with pytest.raises(LoweringError, match=r"# short\)"):
        lower(Model(doubled_if_short), parse_config(yaml_of(lengths=False), "model-config.yaml"))


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
    [(padded_if_short, [5, 16], 5), (other_if_short, [32, 64], 30), (one_frame, [128], 36)],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_model_that_does_something_else_with_short_requests_is_served_from_the_others_on(
    function: Callable[..., Any], buckets: list[int], shortest: int
) -> None:
    model = Model(function)
    config = parse_config(yaml_of(lengths=False).replace("[4, 16]", str(buckets)), "model-config.yaml")

    program = lower(model, config)

    longest = buckets[-1]
    assert program.shortest == shortest
    assert f"fewer than {shortest} timesteps are refused" in program.padding_reason
    assert_answers_alone(model, config, program, ([shortest], [longest, shortest, shortest + 1], [longest - 1] * 2))


def test_buckets_that_hold_short_requests_of_another_form_are_named() -> None:
    config = parse_config(yaml_of(lengths=False).replace("[4, 16]", "[4, 64]"), "model-config.yaml")

    with pytest.raises(LoweringError, match=r"# short\).*Requests of 30 timesteps or more .* without buckets of fewer"):
        lower(Model(other_if_short), config)


def test_a_loop_over_chunks_of_the_timesteps_is_named_with_what_to_do() -> None:
    """Several chunks are no loop over timesteps."""
    model = Model(lambda m, x: in_chunks(m, x, chunk=8))

    with pytest.raises(LoweringError, match=r"chunks = range\(0.*the whole sequence .*Buckets of one chunk"):
        lower(model, parse_config(yaml_of(lengths=False), "model-config.yaml"))


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


IDS = yaml_of(lengths=False, shape="[batch, time]").replace("float32", "int64")


@pytest.mark.ci
def test_a_model_that_fails_on_drawn_ids_is_refused_with_the_range_to_declare() -> None:
    """No layer shows how many ids there are. The message names the input."""
    model = OfIds(lambda table, ids: table[ids])

    with pytest.raises(LoweringError, match=r"0 to 7 were drawn for x: if it takes others only, write `range: "):
        lower(model, parse_config(IDS, "model-config.yaml"))

    lower(model, parse_config(IDS.replace("time]", "time], range: [0, 4]"), "model-config.yaml"))


@pytest.mark.ci
def test_ids_of_a_one_hot_in_a_loop_are_bounded_by_its_classes() -> None:
    model = OfIds(lambda table, ids: nn.functional.one_hot(ids, FEATURES).float())

    program = lower(model, parse_config(IDS, "model-config.yaml"))

    assert program.inputs[0].vocabulary == FEATURES


def test_bins_over_time_are_served_at_bucket_lengths() -> None:
    """Pooling to three bins depends on the whole length, and has no rule."""
    model = Model(lambda m, x: nn.functional.adaptive_avg_pool1d(x.transpose(1, 2), 3))

    program = lower(model, parse_config(yaml_of(lengths=False), "model-config.yaml"))

    assert program.padding == "exact_lengths"


@pytest.mark.few(1)
@pytest.mark.parametrize(("length", "other"), [(12, 12), (14, 1)])
def test_a_branch_on_one_length_is_named_with_its_line(length: int, other: int) -> None:
    """The exporter excludes that length, or all others if it is the traced one, 14."""
    model = Model(lambda m, x: m.lstm(x.flip(1))[0] + (1 if x.size(1) == length else 0))

    with pytest.raises(LoweringError, match=rf"branch that a request of {other} timesteps .*\.py:\d+.*== length"):
        lower(model, parse_config(yaml_of(lengths=False), "model-config.yaml"))


def test_a_branch_on_a_derived_length_is_noticed() -> None:
    model = Model(lambda m, x: m.lstm(x.flip(1))[0] + (1 if x.size(1) // 2 < 5 else 0))

    with pytest.raises(LoweringError, match=r"branch that a request of 1 timesteps .*\.py:\d+.*// 2 < 5"):
        lower(model, parse_config(yaml_of(lengths=False), "model-config.yaml"))


class TakesTuples(nn.Module):
    def __init__(self, *, cuda: bool = False) -> None:
        super().__init__()
        self.cuda_calls = cuda
        self.first = nn.LSTM(FEATURES, 6, batch_first=True)
        self.second = nn.LSTM(6, 6, batch_first=True)

    def forward(self, batch: Any, states: Any) -> Any:
        x, lengths = batch
        x = x.cuda() if self.cuda_calls else x
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        y, first = self.first(packed, states[0])
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
    """Every element has its own name; a `.cuda()` in the code changes nothing."""
    model = TakesTuples().eval()
    written = TakesTuples(cuda=cuda).eval()
    written.load_state_dict(model.state_dict())
    config = parse_config(TUPLES, "model-config.yaml")
    program = lower(written, config)
    lengths = [16, 1, 9]
    requests = ragged(program.inputs, lengths, 0)
    batch = [padded(requests, spec, i, 16, 1e3) for i, spec in enumerate(program.inputs)]

    with torch.no_grad():
        outputs = program.exported.module()(*batch, torch.tensor(lengths))

    assert [spec.name for spec in program.outputs] == ["0", "1.0.0", "1.0.1", "1.1.0", "1.1.1"]
    for row, length in enumerate(lengths):
        for output, spec, own in zip(
            outputs, program.outputs, alone(model, config, requests.items[row], length), strict=True
        ):
            ours = part_of(output, spec, row, length)
            assert torch.allclose(ours.reshape(own.shape), own, 1e-5, 1e-5), spec.name


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
    config = parse_config(
        yaml_of(lengths=False).replace("neuron_lstm:", "neuron_lstm:\n  model: {batched: false}"), "model-config.yaml"
    )

    program = lower(model, config)

    assert [spec.shape for spec in program.outputs] == [("batch", "time", 3)]
    assert_answers_alone(model, config, program, BATCHES)
