"""Lowering through the trace of one request: models as people write them, against each request alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from ragged import alone, assert_answers_alone, padded, part_of, ragged
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence, pad_sequence

from torchserve_neuron_lstm.archiver_ext.served_method import serve_method
from torchserve_neuron_lstm.config.load import parse_config
from torchserve_neuron_lstm.lowering import LoweringError, lower
from torchserve_neuron_lstm.lowering.program import LoweredModel

FEATURES = 5
BATCHES = ([1], [9, 1, 4], [16, 15, 1, 7, 16], [2, 2, 3])


def yaml_of(*, lengths: bool, shape: str = "[batch, time, 5]") -> str:
    """Return a configuration with one input."""
    return (
        f"neuron_lstm:\n  inputs: {{x: {{dtype: float32, shape: {shape}}}}}\n"
        f"{'  lengths: lengths' if lengths else ''}\n  buckets: {{batch: [1, 8], length: [4, 16]}}\n"
    )


class Model(nn.Module):
    """A function of x[B, T, 5], and of lengths where it takes them, with layers that models often have."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.gru = nn.GRU(FEATURES, 6, batch_first=True, bidirectional=True)
        self.lstm = nn.LSTM(FEATURES, 6, batch_first=True)
        self.steps = nn.GRU(FEATURES, 6)
        self.halved = nn.Conv1d(FEATURES, FEATURES, 3, stride=2, padding=1)
        self.image = nn.Conv2d(1, 3, 3, padding=1)
        self.up = nn.ConvTranspose1d(FEATURES, FEATURES, 2, stride=2)
        self.statistics = nn.BatchNorm1d(FEATURES)
        self.group = nn.GroupNorm(1, FEATURES)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.score = nn.Linear(12, 1)
        self.step = nn.LSTMCell(6, 6)
        self.doubled = nn.Conv1d(FEATURES, 2 * FEATURES, 1)
        self.slopes = nn.PReLU(FEATURES)
        self.pair = nn.Bilinear(FEATURES, FEATURES, 4)
        nn.init.normal_(self.slopes.weight)
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Any:
        """Apply the function."""
        return self.function(self, x) if lengths is None else self.function(self, x, lengths)


def subsampled(m: Model, x: Tensor) -> Any:
    """A convolution with a stride, then a recurrence over the shorter sequence."""
    frames = torch.relu(m.statistics(m.halved(x.transpose(1, 2)))).transpose(1, 2)
    y, h = m.gru(frames)
    return y, h, y.mean(1)


def sound_events(m: Model, x: Tensor) -> Any:
    """A convolution over time and features, pooled over features, then a recurrence."""
    maps = nn.functional.max_pool2d(torch.relu(m.image(x.unsqueeze(1))), (1, 5))
    return maps.squeeze(3).transpose(1, 2)


def attention_pooling(m: Model, x: Tensor) -> Any:
    """Scores over all timesteps, without any mask."""
    y, _ = m.gru(x)
    return (torch.softmax(m.score(y), dim=1) * y).sum(1)


def self_attention(m: Model, x: Tensor) -> Any:
    """Attention of every timestep to every timestep."""
    y, _ = m.lstm(x)
    return m.attention(y, y, y)


def normalized(m: Model, x: Tensor) -> Any:
    """Statistics of the request itself, of each channel and of all."""
    return m.group(x.transpose(1, 2)), (x - x.mean((1, 2), keepdim=True)) / (x.std((1, 2), keepdim=True) + 1)


def language_model(m: Model, x: Tensor) -> Any:
    """Time-major, decoded as a flat matrix."""
    y, h = m.steps(x.transpose(0, 1))
    return m.out(y.view(y.size(0) * y.size(1), y.size(2))), h


def scaled_by_the_batch(m: Model, x: Tensor) -> Any:
    """A default that is a mean over the whole batch."""
    return x / (1 + x.abs().mean())


def counted(m: Model, x: Tensor) -> Any:
    """`len()` and `int()` of what varies."""
    return m.lstm(x)[0].sum(1) / int(x.shape[1]), x.reshape(len(x), -1).sum(1, keepdim=True)


def reversed_twice(m: Model, x: Tensor) -> Any:
    """A second direction by hand."""
    backward, _ = m.lstm(x.flip(1))
    return backward.flip(1), backward[:, x.size(1) - 1], x[:, 1:] - x[:, :-1]


def upsampled(m: Model, x: Tensor) -> Any:
    """Twice as many timesteps, and every second one."""
    return m.up(x.transpose(1, 2)), x.repeat_interleave(2, 1), x[:, ::2], torch.cat([x, x.flip(1)], 1)


def averaged(m: Model, x: Tensor) -> Any:
    """Means over windows: with the padding, of the real timesteps, and with a shorter last window."""
    channels = x.transpose(1, 2)
    return (
        nn.functional.avg_pool1d(channels, 3, 1, 1),
        nn.functional.avg_pool1d(channels, 3, 1, 1, count_include_pad=False),
        nn.functional.avg_pool1d(channels, 2, 2, ceil_mode=True),
    )


def pooled_to_one(m: Model, x: Tensor) -> Any:
    """The mean of all timesteps, by a layer that pools images."""
    return nn.functional.adaptive_avg_pool1d(m.lstm(x)[0].transpose(1, 2), 1)


def projected_on_a_vector(m: Model, x: Tensor) -> Any:
    """The last state as a vector times every timestep, from the left and from the right."""
    y, (h, _) = m.lstm(x)
    vector = h[0, 0]  # as code for one request is written
    return torch.matmul(vector, y.transpose(1, 2)), torch.matmul(y, vector)


def interpolated(m: Model, x: Tensor) -> Any:
    """Timesteps between two others; behind the last one it is repeated."""
    doubled = nn.functional.interpolate(x.transpose(1, 2), scale_factor=2, mode="linear")
    return doubled.transpose(1, 2).flip(1)


def halved_lengths(m: Model, x: Tensor, lengths: Tensor) -> Any:
    """A mask from lengths that are divided as tensors, after a convolution with a stride."""
    frames = m.halved(x.transpose(1, 2)).transpose(1, 2)
    steps = (lengths - 1) // 2 + 1
    mask = torch.arange(frames.size(1)).unsqueeze(0) < steps.unsqueeze(1)
    return (frames * mask.unsqueeze(2)).sum(1) / steps.unsqueeze(1)


def mask_by_loop(m: Model, x: Tensor, lengths: Tensor) -> Any:
    """A mask that a loop over the lengths fills."""
    mask = torch.zeros(x.size(0), max(lengths))
    for row, length in enumerate(lengths):
        mask[row, :length] = 1
    return m.lstm(x)[0] * mask.unsqueeze(-1)


def sorted_by_numpy(m: Model, x: Tensor, lengths: Tensor) -> Any:
    """Sorting and packing by numpy, unsorting afterwards."""
    order = np.argsort(-lengths.cpu().numpy())
    packed = pack_padded_sequence(
        x[torch.from_numpy(order)], torch.from_numpy(lengths.numpy()[order]), batch_first=True
    )
    y, _ = pad_packed_sequence(m.lstm(packed)[0], batch_first=True)
    return y.index_select(0, torch.from_numpy(np.argsort(order))).max(1)[0]


def packed_data(m: Model, x: Tensor, lengths: Tensor) -> Any:
    """A layer on the data of a PackedSequence, and the lengths as an answer."""
    packed = m.lstm(pack_padded_sequence(x, lengths.tolist(), batch_first=True, enforce_sorted=False))[0]
    packed = PackedSequence(m.out(packed.data), packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
    return pad_packed_sequence(packed, batch_first=True)


def relative_lengths(m: Model, x: Tensor, lengths: Tensor) -> Any:
    """A mean over the share of the timesteps that is real."""
    share = lengths.float() / x.size(1)
    if lengths.min() > 0:
        return m.lstm(x)[0].sum(1) / (share * x.size(1)).unsqueeze(1)
    return x


def packed_rows(m: Model, x: Tensor, lengths: Tensor) -> Any:
    """A list of sequences without padding, packed and padded again."""
    rows = [row[:size] for row, size in zip(x, lengths.tolist(), strict=True)]
    y, _ = pad_packed_sequence(m.lstm(pack_sequence(rows, enforce_sorted=False))[0], batch_first=True)
    return y + pad_sequence([torch.ones(size, 1) for size in lengths.tolist()], batch_first=True)


def decoded(m: Model, x: Tensor, lengths: Tensor) -> Any:
    """Steps of a cell after the sequence, each with attention over its timesteps."""
    packed = pack_padded_sequence(x, lengths.tolist(), batch_first=True, enforce_sorted=False)
    y, (h, c) = m.lstm(packed)
    y, _ = pad_packed_sequence(y, batch_first=True)
    positions = torch.arange(y.size(1)).type_as(lengths)
    state, outputs = (h[0], c[0]), []
    for _ in range(3):
        scores = torch.bmm(y, state[0].unsqueeze(2)).squeeze(2)
        weights = torch.softmax(scores.masked_fill(positions >= lengths.unsqueeze(1), float("-inf")), 1)
        context = torch.bmm(weights.unsqueeze(1), y).squeeze(1)
        state = m.step(torch.max(context, torch.tanh(context) * 0.5), state)
        outputs.append(m.out(state[0]))
    return torch.stack(outputs, 1), state[1]


def gated(m: Model, x: Tensor) -> Any:
    """Gates, slopes of channels, a bilinear layer and a causal attention over fewer frames."""
    frames = m.slopes(torch.nn.functional.glu(m.doubled(m.halved(x.transpose(1, 2))), 1)).transpose(1, 2)
    y = m.pair(frames, torch.tanh(frames))
    similar = torch.cosine_similarity(y, y.mean(1, keepdim=True), dim=-1)
    return y, torch.tril(y @ y.transpose(1, 2)), similar


WITHOUT_LENGTHS = (
    gated,
    subsampled,
    sound_events,
    attention_pooling,
    self_attention,
    normalized,
    language_model,
    counted,
    reversed_twice,
    upsampled,
    averaged,
    pooled_to_one,
    projected_on_a_vector,
    interpolated,
)
WITH_LENGTHS = (
    *(mask_by_loop, halved_lengths, sorted_by_numpy, packed_data, relative_lengths),
    *(packed_rows, decoded),
)


@pytest.mark.parametrize("function", [*WITHOUT_LENGTHS, *WITH_LENGTHS], ids=lambda f: f.__name__)
def test_a_model_is_served_at_every_length_as_each_request_alone(function: Callable[..., Any]) -> None:
    """Ragged batches with garbage in the padding; outputs have their own lengths."""
    torch.manual_seed(0)
    model = Model(function)
    lengths = function in WITH_LENGTHS

    program = lower(model, parse_config(yaml_of(lengths=lengths), "model-config.yaml"))

    assert program.padding == "masked"
    require_exact(model, program, lengths=lengths)


def require_exact(model: nn.Module, program: LoweredModel, *, lengths: bool) -> None:
    """Compare every output of ragged batches with the model on each request alone."""
    config = parse_config(yaml_of(lengths=lengths), "model-config.yaml")
    assert_answers_alone(model, config, program, BATCHES)


class Subsampled(nn.Module):
    """A convolution with a stride, and a packed recurrence over the lengths that `halve` computes."""

    def __init__(self, halve: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.halve = halve
        self.halved = nn.Conv1d(FEATURES, FEATURES, 3, stride=2, padding=1)
        self.gru = nn.GRU(FEATURES, 6, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        """Pack the frames."""
        frames = self.halved(x.transpose(1, 2)).transpose(1, 2)
        packed = pack_padded_sequence(frames, self.halve(lengths), batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.gru(packed)[0], batch_first=True)


def changed_in_place(lengths: Tensor) -> Tensor:
    """Lengths that are changed where they are stored."""
    halved = lengths.clone()
    halved -= 1
    halved.div_(2, rounding_mode="trunc")
    return halved.add_(1)


@pytest.mark.parametrize(
    "halve",
    [
        pytest.param(lambda n: torch.div(n - 1, 2, rounding_mode="floor") + 1, id="floor"),
        pytest.param(lambda n: torch.ceil(n / 2).long().cpu(), id="ceil"),
        pytest.param(lambda n: ((n.float() - 1) * 0.5 + 1).to(torch.int64), id="cast"),
        pytest.param(lambda n: torch.stack([(own + 1) >> 1 for own in n]).clamp(min=1), id="stacked"),
        pytest.param(lambda n: [int(own) for own in (n + 1) / 2], id="integers"),
        pytest.param(changed_in_place, id="in place"),
    ],
)
def test_lengths_after_a_stride_are_followed_however_they_are_rounded(halve: Callable[[Tensor], Any]) -> None:
    """A convolution before a packed recurrence: rounded quotients, casts, changes in place."""
    torch.manual_seed(0)
    model = Subsampled(halve)

    program = lower(model, parse_config(yaml_of(lengths=True), "model-config.yaml"))

    require_exact(model, program, lengths=True)


def test_a_default_over_the_batch_is_that_of_the_request() -> None:
    """Nothing of another row reaches an output."""
    model = Model(scaled_by_the_batch)

    program = lower(model, parse_config(yaml_of(lengths=False), "model-config.yaml"))

    require_exact(model, program, lengths=False)


def test_an_output_has_the_length_of_its_own_frames() -> None:
    """The layout says how it follows from the request's timesteps."""
    program = lower(Model(subsampled), parse_config(yaml_of(lengths=False), "model-config.yaml"))

    assert program.outputs[0].item_sizes(9) == (5, 12)
    assert program.outputs[0].item_sizes(1) == (1, 12)


def test_a_branch_on_odd_lengths_is_refused() -> None:
    """A graph that holds for even numbers of timesteps only is no program for all."""
    model = Model(lambda m, x: x.view(2, -1, FEATURES) if x.size(1) % 2 == 0 else x)

    with pytest.raises(LoweringError, match="fixes the batch or time dimension"):
        lower(model, parse_config(yaml_of(lengths=False), "model-config.yaml"))


def test_bins_over_time_are_served_at_bucket_lengths() -> None:
    """Pooling to three bins depends on the whole length, and has no rule."""
    model = Model(lambda m, x: nn.functional.adaptive_avg_pool1d(x.transpose(1, 2), 3))

    program = lower(model, parse_config(yaml_of(lengths=False), "model-config.yaml"))

    assert program.padding == "exact_lengths"


@pytest.mark.parametrize("length", [12, 14])
def test_a_branch_on_one_length_is_noticed(length: int) -> None:
    """The exporter excludes that length, so the program is compared with the model there."""
    model = Model(lambda m, x: m.lstm(x.flip(1))[0] + (1 if x.size(1) == length else 0))

    with pytest.raises(LoweringError, match="fixes the batch or time dimension"):
        lower(model, parse_config(yaml_of(lengths=False), "model-config.yaml"))


def test_a_branch_on_a_derived_length_is_noticed() -> None:
    """A condition on half the timesteps is evaluated for every length of the grid."""
    model = Model(lambda m, x: m.lstm(x.flip(1))[0] + (1 if x.size(1) // 2 < 5 else 0))

    with pytest.raises(LoweringError, match="fixes the batch or time dimension"):
        lower(model, parse_config(yaml_of(lengths=False), "model-config.yaml"))


class TakesTuples(nn.Module):
    """A forward() of a tuple (x, lengths), and of states as tuples in a tuple."""

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


@pytest.mark.parametrize("cuda", [False, True])
def test_tuples_may_hold_tuples_and_the_lengths(cuda: bool) -> None:
    """Every element has its own name; a `.cuda()` in the code changes nothing."""
    torch.manual_seed(0)
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
    """The elements that are there are named."""
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
        """Tag: [T, 3]."""
        y, _ = self.lstm(x.view(len(x), 1, -1))
        return torch.log_softmax(self.out(y.view(len(x), -1)), 1)


def test_a_model_of_one_sequence_runs_in_ragged_batches() -> None:
    """Its requests share a program, and each is answered as alone."""
    torch.manual_seed(0)
    model = OneSentence().eval()
    serve_method(model, "forward", batched=False)
    config = parse_config(
        yaml_of(lengths=False).replace("neuron_lstm:", "neuron_lstm:\n  model: {batched: false}"), "model-config.yaml"
    )

    program = lower(model, config)

    assert [spec.shape for spec in program.outputs] == [("batch", "time", 3)]
    assert_answers_alone(model, config, program, BATCHES)
