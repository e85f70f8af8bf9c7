"""Models as people write them: functions of one input over common layers."""

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

FEATURES = 5


class Model(nn.Module):
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
        self.back = nn.Linear(6, FEATURES)
        layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.bags = nn.EmbeddingBag(3, 4, mode="mean", padding_idx=0)
        self.largest = nn.EmbeddingBag(3, 4, mode="max")

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Any:
        return self.function(self, x) if lengths is None else self.function(self, x, lengths)


def subsampled(m: Model, x: Tensor) -> Any:
    frames = torch.relu(m.statistics(m.halved(x.transpose(1, 2)))).transpose(1, 2)
    y, h = m.gru(frames)
    return y, h, y.mean(1)


def sound_events(m: Model, x: Tensor) -> Any:
    maps = nn.functional.max_pool2d(torch.relu(m.image(x.unsqueeze(1))), (1, 5))
    return maps.squeeze(3).transpose(1, 2)


def attention_pooling(m: Model, x: Tensor) -> Any:
    y, _ = m.gru(x)
    return (torch.softmax(m.score(y), dim=1) * y).sum(1)


def self_attention(m: Model, x: Tensor) -> Any:
    y, _ = m.lstm(x)
    return m.attention(y, y, y)


def normalized(m: Model, x: Tensor) -> Any:
    return m.group(x.transpose(1, 2)), (x - x.mean((1, 2), keepdim=True)) / (x.std((1, 2), keepdim=True) + 1)


def language_model(m: Model, x: Tensor) -> Any:
    """Time-major, decoded as a flat matrix."""
    y, h = m.steps(x.transpose(0, 1))
    return m.out(y.view(y.size(0) * y.size(1), y.size(2))), h


def scaled_by_the_batch(m: Model, x: Tensor) -> Any:
    return x / (1 + x.abs().mean())


def counted(m: Model, x: Tensor) -> Any:
    left = x.size(1) - (x[:, :, 0] > 0).sum(1)
    return m.lstm(x)[0].sum(1) / int(x.shape[1]), x.reshape(len(x), -1).sum(1, keepdim=True), left


def reversed_twice(m: Model, x: Tensor) -> Any:
    backward, _ = m.lstm(x.flip(1))
    return backward.flip(1), backward[:, x.size(1) - 1], x[:, 1:] - x[:, :-1]


def upsampled(m: Model, x: Tensor) -> Any:
    return m.up(x.transpose(1, 2)), x.repeat_interleave(2, 1), x[:, ::2], torch.cat([x, x.flip(1)], 1)


def averaged(m: Model, x: Tensor) -> Any:
    channels = x.transpose(1, 2)
    return (
        nn.functional.avg_pool1d(channels, 3, 1, 1),
        nn.functional.avg_pool1d(channels, 3, 1, 1, count_include_pad=False),
        nn.functional.avg_pool1d(channels, 2, 2, ceil_mode=True),
    )


def pooled_to_one(m: Model, x: Tensor) -> Any:
    return nn.functional.adaptive_avg_pool1d(m.lstm(x)[0].transpose(1, 2), 1)


def projected_on_a_vector(m: Model, x: Tensor) -> Any:
    y, (h, _) = m.lstm(x)
    vector = h[0, 0]  # as code for one request is written
    return torch.matmul(vector, y.transpose(1, 2)), torch.matmul(y, vector)


def interpolated(m: Model, x: Tensor) -> Any:
    return nn.functional.interpolate(x.transpose(1, 2), scale_factor=2, mode="linear").transpose(1, 2).flip(1)


def gated(m: Model, x: Tensor) -> Any:
    frames = m.slopes(torch.nn.functional.glu(m.doubled(m.halved(x.transpose(1, 2))), 1)).transpose(1, 2)
    y = m.pair(frames, torch.tanh(frames))
    similar = torch.cosine_similarity(y, y.mean(1, keepdim=True), dim=-1)
    return y, torch.tril(y @ y.transpose(1, 2)), similar


def paired(m: Model, x: Tensor) -> Any:
    even = nn.functional.pad(x, (0, 0, 0, x.size(1) % 2))
    return m.lstm(even.reshape(x.size(0), -1, 2 * FEATURES)[:, :, :FEATURES])[0]


def reconstructed(m: Model, x: Tensor) -> Any:
    y = m.lstm(x)[0][:, :, :FEATURES]
    return nn.functional.l1_loss(y, x, reduction="none").mean(-1), nn.functional.mse_loss(y, x)


def surprise(m: Model, x: Tensor) -> Any:
    scores, labels = m.out(m.lstm(x)[0]), x.argmax(2) % 3
    batch, time, classes = scores.shape
    flat, flat_labels = scores.view(batch * time, classes), labels.view(-1)
    return (
        nn.functional.cross_entropy(flat, flat_labels, reduction="none").view(batch, time),
        nn.functional.cross_entropy(scores.transpose(1, 2), labels, reduction="none", label_smoothing=0.1),
        nn.functional.cross_entropy(flat, flat_labels, ignore_index=0, reduction="sum").expand(batch),
    )


def segmented(m: Model, x: Tensor) -> Any:
    batch, time, _ = x.shape
    segments = nn.functional.pad(x, (0, 0, 0, (4 - time % 4) % 4)).view(batch, -1, 4, FEATURES)
    count = segments.size(1)
    within = m.back(m.lstm(segments.reshape(batch * count, 4, FEATURES))[0]).view(batch, count, 4, FEATURES)
    across = m.lstm(within.permute(0, 2, 1, 3).reshape(batch * 4, count, FEATURES))[0]
    return across.view(batch, 4, count, 6).permute(0, 2, 1, 3).reshape(batch, -1, 6)[:, :time]


def best_frames(m: Model, x: Tensor) -> Any:
    y, _ = m.lstm(x)
    return y.topk(min(3, y.size(1)), dim=1)[0].mean(1), y.topk(max(1, y.size(1) // 4), dim=1)[0]


def bags_of_words(m: Model, x: Tensor) -> Any:
    ids = (x > 0).long().flatten(0, 1)
    shape = (x.size(0), x.size(1), -1)
    return m.bags(ids).view(shape), m.largest(ids + 1).view(shape)


def spectra(m: Model, x: Tensor) -> Any:
    return torch.fft.rfft(x, dim=2).abs(), torch.view_as_real(torch.fft.fft(x, dim=2)).flatten(2)


@dataclass
class Scores:
    """An output of its own class, as libraries of models have it."""

    logits: Tensor
    loss: Tensor | None = None
    states: Any = ()


def own_class(m: Model, x: Tensor) -> Any:
    y, (h, _) = m.lstm(x)
    return Scores(y, states=(OrderedDict(last=h), SimpleNamespace(mean=y.mean(1))))


def widest_windows(m: Model, x: Tensor) -> Any:
    maps, images = torch.relu(m.halved(x.transpose(1, 2))), torch.relu(m.image(x.unsqueeze(1)))
    return (
        nn.functional.max_pool1d(maps, maps.size(2)).squeeze(2),
        nn.functional.avg_pool1d(maps, kernel_size=(maps.shape[-1],)),
        nn.functional.max_pool2d(images, (images.size(2), 2)),
        nn.functional.avg_pool2d(images, (images.size(2), 1)).flatten(1),
    )


def repeated_by_lists(m: Model, x: Tensor) -> Any:
    y, (h, _) = m.lstm(x)
    beside = torch.cat([y, torch.cat([x.mean(1, keepdim=True)] * x.shape[1], 1)], 2)
    return beside, torch.stack(x.size(1) * (h[-1],), dim=1) * y


def sorted_by_type(m: Model, x: Tensor) -> Any:
    assert isinstance(Tensor, type)
    return torch.cat([part for part in (None, x, m.lstm(x)[0]) if type(part) == torch.Tensor], 2)  # noqa: E721 - as is written


def causal_layer(m: Model, x: Tensor) -> Any:
    """A layer of torch's transformers, which compares the mask that it is given with a causal one."""
    return m.encoder(m.lstm(x)[0], mask=torch.log(torch.tril(torch.ones(x.size(1), x.size(1)))))


def both_directions(m: Model, x: Tensor) -> Any:
    rows = torch.cat([x, x.flip(1)])
    flat = m.statistics(rows.reshape(rows.shape[0] * rows.shape[1], FEATURES))
    y = m.lstm(flat.reshape(rows.shape))[0]
    ahead, back = y.chunk(2, dim=0)
    return torch.cat([ahead, back.flip(1)], 2)


def flattened_channels(m: Model, x: Tensor) -> Any:
    flat = m.lstm(x)[0].transpose(1, 2).reshape(x.size(0), -1)
    return flat, flat.view(x.size(0), 2, 3, -1).transpose(1, 2)


def globally_normalised(m: Model, x: Tensor) -> Any:
    dims = torch.arange(1, len(x.shape)).tolist()
    return (x - x.mean(dim=dims, keepdim=True)) / torch.sqrt(torch.var(x, dim=dims, keepdim=True) + 1)


def segments_in_turn(m: Model, x: Tensor) -> Any:
    """Overlapping segments, recurrences within and across them, and their overlap-add, as of a dual path."""
    maps, window = x.transpose(1, 2).unsqueeze(-1), {"kernel_size": (4, 1), "padding": (4, 0), "stride": (2, 1)}
    parts = nn.functional.unfold(maps, **window)
    parts = parts.reshape(x.size(0), FEATURES, 4, -1)
    within = parts.permute(0, 3, 2, 1).reshape(-1, 4, FEATURES)
    parts = parts + m.back(m.lstm(within)[0]).reshape(x.size(0), -1, 4, FEATURES).permute(0, 3, 2, 1)
    across = parts.permute(0, 2, 3, 1).reshape(x.size(0) * 4, -1, FEATURES)
    parts = m.score(m.gru(across)[0]).reshape(x.size(0), 1, 4, -1) * parts
    added = nn.functional.fold(parts.reshape(x.size(0), 4 * FEATURES, -1), (x.size(1), 1), **window)
    return added.squeeze(-1), nn.functional.fold(parts[0].reshape(4 * FEATURES, -1), (x.size(1), 1), **window)[None]


def masks_of_numpy(m: Model, x: Tensor) -> Any:
    """Masks and weights that numpy makes of the number of timesteps, as in knowledge tracing."""
    steps = x.size(1)
    later = np.triu(np.ones((1, steps, steps)), k=1).astype("uint8")
    scores = torch.matmul(x, x.transpose(1, 2)).masked_fill(torch.from_numpy(later) == 1, -1e9)
    ages = np.abs(np.arange(steps)[:, None] - np.arange(steps)[None, :])
    weights = torch.FloatTensor(1 / (1 + ages)) * torch.tensor(np.eye(steps, dtype=np.float32) == 0)
    own = torch.from_numpy(np.logical_not(np.tri(steps, k=-1)).astype(np.float64)).float()
    return torch.softmax(scores, -1) @ x, weights.unsqueeze(0) @ x, own[None] @ m.lstm(x)[0]


def framed(m: Model, x: Tensor) -> Any:
    first, last = (m.slopes.weight * sign for sign in (1, -1))
    ends = [end.expand(x.size(0), 1, FEATURES) for end in (first, last)]
    y, h = m.lstm(torch.cat([ends[0], x, ends[1]], 1))
    return y, h[0], torch.cat([y[:, :1], y, y[:, -2:], y[:, :1]], 1)


def exponential_units(m: Model, x: Tensor) -> Any:
    """`nn.ELU`, whose operator has `alpha` among its positional arguments, before a recurrence."""
    units = (nn.functional.elu(x, 0.5), nn.functional.selu(x), nn.functional.celu(x, 2.0))
    return m.gru(sum(units) / x.flip(1).exp())[0]


def windows_repeated(m: Model, x: Tensor) -> Any:
    """Windows that requests share, repeated for each timestep and added, as inverse STFTs do."""
    window = torch.hann_window(4, periodic=False)[None, :, None].repeat(1, 1, x.size(1))
    overlap = nn.functional.conv_transpose1d(window, torch.eye(4)[:, None, :], stride=2)
    positions = torch.arange(x.size(1), dtype=torch.float32)[None, None]
    largest = nn.functional.max_pool1d(positions, 3, 2, 1)
    means = nn.functional.avg_pool1d(positions, 2, ceil_mode=True)
    last = nn.functional.adaptive_avg_pool1d(positions, 1)
    frames = m.lstm(x.flip(1))[0].sum(2)
    return (
        frames * overlap[:, 0, 2 : 2 * x.size(1) + 2 : 2],
        frames.sum(1)[:, None] + largest[0] + last[0],
        means[0] + frames[:, :1],
    )


def rounded_sizes(m: Model, x: Tensor) -> Any:
    """A whole length is rounded, as where a model upsamples by a factor that may be a fraction."""
    length = math.ceil(x.size(1) * 2) + math.floor(x.size(1)) + round(x.size(1)) + math.trunc(x.size(1))
    return nn.functional.pad(m.lstm(x.flip(1))[0], (0, 0, 0, length - x.size(1)))


def written_views(m: Model, x: Tensor) -> Any:
    wave = m.up(x.flip(1).transpose(1, 2))[..., 1:]
    wave = wave[..., :-1]
    wave.clamp_(-0.5, 0.5)
    last = m.gru(x)[0][:, -1, :6]
    last.mul_(2.0)
    return wave, last


def in_chunks(m: Model, x: Tensor, chunk: int = 32) -> Any:
    """A recurrence over chunks of the timesteps, forwards and backwards; all are in the first."""
    h = c = torch.zeros(1, x.size(0), 6)
    y = torch.zeros(x.size(0), x.size(1), 6)
    chunks = range(0, x.size(1), chunk)
    assert isinstance(chunks, range)
    for start in chunks:
        y[:, start : start + chunk], (h, c) = m.lstm(x[:, start : start + chunk], (h, c))
    backwards = [m.gru(x[:, start : start + chunk])[0] for start in reversed(chunks)]
    return y, torch.cat(backwards, 1)


def subbands(m: Model, x: Tensor) -> Any:
    """Every feature with its neighbours, at all timesteps, as a sequence of its own (FullSubNet)."""
    wide = nn.functional.pad(x.transpose(1, 2).unsqueeze(1), (0, 0, 2, 2), "reflect")
    windows = nn.functional.unfold(wide, (5, x.size(1)))
    parts = windows.reshape(x.size(0), 1, 5, x.size(1), FEATURES).permute(0, 4, 1, 2, 3)
    y = m.lstm(parts.reshape(x.size(0) * FEATURES, 5, x.size(1)).transpose(1, 2))[0]
    pairs = nn.functional.unfold(x.unsqueeze(1), (x.size(1), 2), stride=(1, 2))
    return y.reshape(x.size(0), FEATURES, x.size(1), 6), pairs.reshape(x.size(0), x.size(1), 2, -1)


def last_marked(m: Model, x: Tensor) -> Any:
    """The state at the number of marked timesteps, which is the last timestep if none is marked."""
    marked = (x[:, :, 0] > 0).sum(1)
    return m.lstm(x)[0][torch.arange(x.size(0)), marked - 1]


WITHOUT_LENGTHS = (
    *(last_marked, subbands, in_chunks, written_views, exponential_units, windows_repeated),
    *(rounded_sizes, framed, masks_of_numpy, widest_windows, repeated_by_lists, sorted_by_type),
    *(causal_layer, segments_in_turn, both_directions, flattened_channels, globally_normalised),
    *(segmented, best_frames, bags_of_words, spectra, own_class, surprise, gated, paired, reconstructed),
    *(subsampled, sound_events, attention_pooling, self_attention, normalized, language_model),
    *(counted, reversed_twice, upsampled, averaged, pooled_to_one, projected_on_a_vector, interpolated),
)
