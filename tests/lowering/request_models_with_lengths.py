"""Models as people write them: functions of one input and of lengths, over common layers."""

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import rnn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence, pad_sequence

from .request_models import FEATURES, Model


def halved_lengths(m: Model, x: Tensor, lengths: Tensor) -> Any:
    frames = m.halved(x.transpose(1, 2)).transpose(1, 2)
    steps = (lengths - 1) // 2 + 1
    mask = torch.arange(frames.size(1)).unsqueeze(0) < steps.unsqueeze(1)
    return (frames * mask.unsqueeze(2)).sum(1) / steps.unsqueeze(1)


def mask_by_loop(m: Model, x: Tensor, lengths: Tensor) -> Any:
    mask = torch.zeros(x.size(0), max(lengths))
    for row, length in enumerate(lengths):
        mask[row, :length] = 1
    return m.lstm(x)[0] * mask.unsqueeze(-1)


def sorted_by_numpy(m: Model, x: Tensor, lengths: Tensor) -> Any:
    order = np.argsort(-lengths.cpu().numpy())
    packed = pack_padded_sequence(
        x[torch.from_numpy(order)], torch.from_numpy(lengths.numpy()[order]), batch_first=True
    )
    y, _ = pad_packed_sequence(m.lstm(packed)[0], batch_first=True)
    return y.index_select(0, torch.from_numpy(np.argsort(order))).max(1)[0]


def packed_data(m: Model, x: Tensor, lengths: Tensor) -> Any:
    packed = m.lstm(pack_padded_sequence(x, list(lengths), batch_first=True, enforce_sorted=False))[0]
    packed = PackedSequence(m.out(packed.data), packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
    return pad_packed_sequence(packed, batch_first=True)


def relative_lengths(m: Model, x: Tensor, lengths: Tensor) -> Any:
    share = lengths.float() / x.size(1)
    if lengths.min() > 0:
        return m.lstm(x)[0].sum(1) / (share * x.size(1)).unsqueeze(1)
    return x


def packed_rows(m: Model, x: Tensor, lengths: Tensor) -> Any:
    rows = [row[:size] for row, size in zip(x, lengths.tolist(), strict=True)]
    y, _ = pad_packed_sequence(m.lstm(pack_sequence(rows, enforce_sorted=False))[0], batch_first=True)
    turned = [nn.functional.pad(row[:k].flip(0), [0, 0, 0, x.size(1) - k]) for row, k in zip(x, lengths, strict=True)]
    return y + pad_sequence([torch.ones(size, 1) for size in lengths.tolist()], batch_first=True), torch.stack(turned)


def decoded(m: Model, x: Tensor, lengths: Tensor) -> Any:
    y, (h, c) = m.lstm(pack_padded_sequence(x, lengths.tolist(), batch_first=True, enforce_sorted=False))
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


def flat_softmax(m: Model, x: Tensor, lengths: Tensor) -> Any:
    packed = m.gru(pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False))[0]
    scores = m.score(packed.data).squeeze(1)
    scores = torch.exp(scores - scores.max())
    packed = PackedSequence(scores, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
    weights, _ = pad_packed_sequence(packed, batch_first=True)
    return weights / weights.sum(1, keepdim=True)


def unpacked(m: Model, x: Tensor, lengths: Tensor) -> Any:
    packed = m.lstm(pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False))[0]
    halves = rnn.unpad_sequence(m.halved(x.transpose(1, 2)).permute(2, 0, 1), (lengths + 1) // 2)
    return torch.stack([row.std(0, correction=0) for row in rnn.unpack_sequence(packed)]), torch.stack(
        [row[-1] - row.mean(0) for row in halves]
    )


def selected_by_positions(m: Model, x: Tensor, lengths: Tensor) -> Any:
    y, _ = m.gru(x)
    mask = torch.arange(x.size(1))[None] < lengths[:, None]
    rows = [row[torch.arange(x.size(1)) < own] for row, own in zip(y, lengths, strict=True)]
    kept = torch.stack([(torch.softmax(m.score(row), 0) * row).sum(0) for row in rows])
    if not mask.all():
        y = y * mask.unsqueeze(2)
    last = y[torch.arange(x.size(1)).repeat(x.size(0), 1) == lengths.view(-1, 1) - 1]
    return kept, m.statistics(x[mask]).view_as(x), y.sum(1) / mask.sum(1, keepdim=True), last


def without_empty_rows(m: Model, x: Tensor, lengths: Tensor) -> Any:
    kept = lengths > 0
    own = lengths[kept]
    if own.shape[0] == 0:
        return x.new_zeros(len(x), FEATURES), own
    rows = torch.masked_select(x, kept.view(-1, 1, 1)).view(-1, x.size(1), FEATURES)
    packed = pack_padded_sequence(rows, own.cpu(), batch_first=True, enforce_sorted=False)
    y, _ = pad_packed_sequence(m.gru(packed)[0], batch_first=True, total_length=x.size(1))
    pooled = x.new_zeros(len(x), y.size(2))
    pooled[kept] = y.mean(1)
    shifted = copy.deepcopy(own)
    shifted -= 1
    return pooled, shifted, lengths


def changed_mask(m: Model, x: Tensor, lengths: Tensor) -> Any:
    mask = torch.arange(x.size(1)) < lengths[:, None]
    view, copy = mask.unsqueeze(2), mask.clone()
    view[:, 0] = False
    steps = torch.ones_like(copy, dtype=torch.uint8).t()
    assert steps[0].all()
    chosen = torch.where(steps.t().unsqueeze(2), x, -x)
    return (x * mask.unsqueeze(2)).sum(1), x[copy].view_as(x), view.sum((1, 2)), chosen


def likelihoods(m: Model, x: Tensor, lengths: Tensor) -> Any:
    """Losses and distributions of torch that check the values which they are given."""
    y = m.lstm(x)[0][:, :, :FEATURES]
    spread = nn.functional.softplus(y) + 0.1
    loss = nn.functional.gaussian_nll_loss(y, x, spread, full=True, reduction="none")
    shared = nn.functional.gaussian_nll_loss(y, x, spread[..., 0], reduction="none")
    normal = torch.distributions.Normal(y, spread)
    mask = torch.arange(x.size(1)) < lengths.unsqueeze(1)
    return loss, shared, (normal.log_prob(x).sum(-1) * mask).sum(1), torch.distributions.Categorical(logits=y).entropy()


def unsorted_by_hand(m: Model, x: Tensor, lengths: Tensor) -> Any:
    ordered, places = torch.sort(lengths, descending=True)
    back = [0] * lengths.size(0)
    for row in range(len(places)):
        back[places[row]] = row
    packed = pack_padded_sequence(x[places], ordered.cpu(), batch_first=True)
    return pad_packed_sequence(m.lstm(packed)[0], batch_first=True)[0][back]


def mean_by_numpy(m: Model, x: Tensor, lengths: Tensor) -> Any:
    numbers = lengths.numpy()
    same: type = torch.FloatTensor
    total = m.gru(x.type(same))[0].sum(1)  # type: ignore[call-overload]  # torch takes its own types
    return total / torch.FloatTensor(numbers.copy()).unsqueeze(1), (x > 0).type("torch.LongTensor")


def cells_over_packed(m: Model, x: Tensor, lengths: Tensor) -> Any:
    packed = pack_padded_sequence(m.gru(x)[0][..., :6], lengths, batch_first=True, enforce_sorted=False)
    data, rows = packed.data, int(packed.batch_sizes[0].item())
    results = []
    for backwards in (False, True):
        states = [list(start.split([1] * rows)) for start in data.new_zeros(2, rows, 6)]
        outputs, start, end = [], 0, data.size(0)
        for own in reversed(packed.batch_sizes) if backwards else packed.batch_sizes:
            part = data[end - own : end] if backwards else data[start : start + own]
            h, c = m.step(part, (torch.cat(states[0][:own]), torch.cat(states[1][:own])))
            for row in range(own):
                states[0][row], states[1][row] = h[row].unsqueeze(0), c[row].unsqueeze(0)
            outputs.append(h)
            start, end = start + own, end - own
        results.append((torch.cat(outputs[::-1] if backwards else outputs), torch.cat(states[0])))
    back = PackedSequence(torch.cat([data for data, _ in results], 1), packed.batch_sizes, None, None)
    return pad_packed_sequence(back, batch_first=True)[0], results[0][1], results[1][1]


def subsampled_between_layers(m: Model, x: Tensor, lengths: Tensor) -> Any:
    packed = pack_padded_sequence(x, lengths, batch_first=True)
    y, own = pad_packed_sequence(m.lstm(packed)[0], batch_first=True)
    sizes = [int(size + 1) // 2 for size in own]
    packed = pack_padded_sequence(m.back(y[:, ::2]), sizes, batch_first=True)
    frames, _ = pad_packed_sequence(m.lstm(packed)[0], batch_first=True)
    positions = torch.arange(0, int(max(sizes))).unsqueeze(0).expand(len(sizes), -1)
    return frames.masked_fill((positions >= positions.new(sizes).unsqueeze(-1)).unsqueeze(-1), 0.0)


WITH_LENGTHS = (
    subsampled_between_layers,
    mean_by_numpy,
    cells_over_packed,
    *(mask_by_loop, halved_lengths, sorted_by_numpy, packed_data, relative_lengths),
    *(packed_rows, decoded, flat_softmax, unpacked, selected_by_positions, changed_mask, likelihoods),
    *(unsorted_by_hand, without_empty_rows),
)
