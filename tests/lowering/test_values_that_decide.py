"""Requests whose values no draw from a normal distribution has: each is answered as alone."""

from collections.abc import Sequence

import pytest
import torch
from input_configs import config_of, one_input
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from torchserve_neuron_lstm.config.schema import ServingConfig
from torchserve_neuron_lstm.lowering import lower

PADDED = 16
IDS = config_of("{ids: {dtype: int64, shape: [batch, time], range: [1, 39]}}", "lengths: lengths")
X, X_AND_LENGTHS = one_input("[batch, time, 3]"), one_input("[batch, time, 3]", "lengths: lengths")


def padded(requests: Sequence[Tensor]) -> Tensor:
    """Return the requests in a batch, with what serving writes beyond their ends."""
    batch = torch.zeros(len(requests), PADDED, *requests[0].shape[1:], dtype=requests[0].dtype)
    for row, request in zip(batch, requests, strict=True):
        row[: len(request)] = request
    return batch


def assert_answered_alone(
    model: nn.Module, config: ServingConfig, requests: Sequence[Tensor], *others: Sequence[Tensor]
) -> None:
    """`others` are the requests' inputs without time."""
    run, lengths = lower(model.eval(), config).exported.module(), torch.tensor([len(request) for request in requests])
    answers = run(padded(requests), *(torch.stack(list(other)) for other in others), lengths)
    for row, request in enumerate(requests):
        given = [request[None], *(other[row][None] for other in others)]
        alone = model(*given, lengths[row : row + 1]) if config.lengths is not None else model(*given)
        for answer, expected in zip(answers, alone if isinstance(alone, tuple) else (alone,), strict=True):
            own = answer[row, : len(request)] if expected.dim() == 3 else answer[row]
            torch.testing.assert_close(own, expected[0], atol=1e-5, rtol=1e-5)


class PooledWords(nn.Module):
    """Attention that gives a large negative score to some words, beside the id of padding."""

    def __init__(self, *left_out: int) -> None:
        super().__init__()
        self.left_out = left_out
        self.table = nn.Embedding(40, 5, padding_idx=0)
        self.lstm = nn.LSTM(5, 4, batch_first=True)
        self.score = nn.Linear(4, 1)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.table(ids), lengths, batch_first=True, enforce_sorted=False)
        y = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0]
        scores = self.score(y)[..., 0]
        for word in (0, *self.left_out):
            scores = scores - 1e9 * (ids == word)
        pooled: Tensor = torch.einsum("bt,bth->bh", scores.softmax(1), y)
        return pooled


def test_words_that_are_left_out_fill_a_request() -> None:
    words = [torch.tensor([11, 11, 11]), torch.tensor([5, 11, 8, 11]), torch.tensor([11])]

    assert_answered_alone(PooledWords(11), IDS, words)


def test_an_id_outside_of_the_declared_range_is_no_padding() -> None:
    words = [torch.tensor([0, 0, 0]), torch.tensor([4, 0, 9, 0, 0])]

    assert_answered_alone(PooledWords(), IDS, words)


class Largest(nn.Module):
    """The greatest measurement, over a number that is taken for the least."""

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        beyond = torch.arange(x.size(1))[None] >= lengths[:, None]
        return torch.where(beyond[..., None], torch.tensor(-50.0), x).amax(1)


class Pooled(nn.Module):
    """Scores of raw measurements, with a number in place of minus infinity."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(3, 1, bias=False)
        nn.init.ones_(self.score.weight)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        beyond = torch.arange(x.size(1))[None] >= lengths[:, None]
        weights = self.score(x).squeeze(2).masked_fill(beyond, -300.0).softmax(1)
        pooled: Tensor = (weights[..., None] * x).sum(1).sort(-1)[0]
        return pooled


@pytest.mark.parametrize("model", [Largest, Pooled])
def test_values_below_the_fill_of_a_mask_are_read(model: type[nn.Module]) -> None:
    generator = torch.Generator().manual_seed(0)
    requests = [torch.randn(length, 3, generator=generator) * 5 - 1000 for length in (3, 16, 1, 7)]

    assert_answered_alone(model(), X_AND_LENGTHS, requests)


class Gated(nn.Module):
    """A gate of each request, written as many times as there are features: of a batch, `repeat` mixes the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(3, 6, batch_first=True)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        gate = torch.where(level > 30, 0.1, 1.0).squeeze(1).repeat(6).reshape(-1, 6)
        last: Tensor = self.rnn(x)[1][0]
        return last * gate


def test_a_value_of_one_request_changes_no_other() -> None:
    config = config_of("{x: {dtype: float32, shape: [batch, time, 3]}, level: {dtype: float32, shape: [batch, 1]}}", "")
    requests = [torch.randn(5, 3)] * 4

    assert_answered_alone(Gated(), config, requests, [torch.tensor([level]) for level in (90.0, 2.0, 3.0, 31.0)])


class Fading(nn.Module):
    """Events fade by the timesteps since them, and by how far the request is from its usual length."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.first = first
        self.rnn = nn.GRU(3, 6, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        since = torch.arange(self.first - x.size(1), self.first)[:, None]
        y, h = self.rnn(torch.where(x > 80, x * (1 + 0.01 * since), x) / 100 + 0.1 * (x.size(1) - 9))
        return y, h[0]


@pytest.mark.parametrize("first", [1, 0])
def test_positions_are_counted_from_the_end_of_each_request(first: int) -> None:
    requests = [torch.full((length, 3), 95.0) for length in (16, 1, 6)]

    assert_answered_alone(Fading(first), X, requests)
