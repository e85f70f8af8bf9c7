"""Sequences within each timestep, such as the characters of words, packed by their own lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ragged import assert_answers_alone
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from torchserve_neuron_lstm.config.load import parse_config
from torchserve_neuron_lstm.config.schema import ServingConfig
from torchserve_neuron_lstm.lowering import lower
from torchserve_neuron_lstm.lowering.errors import LoweringError

BATCHES = ([1], [9, 1, 4], [16, 15, 1, 7, 16], [2, 2, 3])
LONGEST_WORD = 7


def config_of(*, range_of_lengths: str = f", range: [1, {LONGEST_WORD}]", takes_lengths: bool = True) -> ServingConfig:
    counts = f"counts: {{dtype: int64, shape: [batch, time]{range_of_lengths}}}" if takes_lengths else ""
    return parse_config(
        f"""
neuron_lstm:
  inputs:
    chars: {{dtype: int64, shape: [batch, time, {LONGEST_WORD}], range: [0, 29]}}
    {counts}
  lengths: lengths
  buckets: {{batch: [1, 8], length: [4, 16]}}
""",
        "model-config.yaml",
    )


class Words(nn.Module):
    """A tagger of words by their characters; `encode` makes a vector of each word."""

    def __init__(self, encode: Callable[..., Tensor]) -> None:
        super().__init__()
        self.encode = encode
        self.embedding = nn.Embedding(30, 5)
        self.chars = nn.LSTM(5, 6, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(12, 8, batch_first=True)

    def forward(self, chars: Tensor, counts: Tensor, lengths: Tensor) -> Any:
        batch, time, _ = chars.shape
        words = self.encode(self, chars.view(batch * time, -1), counts.reshape(-1)).view(batch, time, -1)
        packed = pack_padded_sequence(words, lengths.cpu(), batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.gru(packed)[0], batch_first=True)[0]


class Counted(Words):
    def forward(self, chars: Tensor, lengths: Tensor) -> Any:  # type: ignore[override]  # without the counts
        return super().forward(chars, (chars != 0).sum(-1).clamp(min=1), lengths)


def last_states(m: Words, chars: Tensor, counts: Tensor) -> Tensor:
    packed = pack_padded_sequence(m.embedding(chars), counts.cpu(), batch_first=True, enforce_sorted=False)
    _, (h, _) = m.chars(packed)
    return torch.cat([h[0], h[1]], 1)


def sorted_by_hand(m: Words, chars: Tensor, counts: Tensor) -> Tensor:
    ordered, order = counts.sort(descending=True)
    packed = pack_padded_sequence(m.embedding(chars)[order], ordered.cpu(), batch_first=True)
    _, (h, _) = m.chars(packed)
    return torch.cat([h[0], h[1]], 1)[order.argsort()]


def all_states(m: Words, chars: Tensor, counts: Tensor) -> Tensor:
    packed = pack_padded_sequence(m.embedding(chars), counts.cpu(), batch_first=True, enforce_sorted=False)
    states, _ = pad_packed_sequence(m.chars(packed)[0], batch_first=True, total_length=LONGEST_WORD)
    return states.max(1)[0]


def longest_of_batch(m: Words, chars: Tensor, counts: Tensor) -> Tensor:
    packed = pack_padded_sequence(m.embedding(chars), counts.cpu(), batch_first=True, enforce_sorted=False)
    states, _ = pad_packed_sequence(m.chars(packed)[0], batch_first=True)
    return states.max(1)[0]


@pytest.mark.ci
@pytest.mark.parametrize("encode", [pytest.param(last_states, marks=pytest.mark.long), all_states])
def test_words_are_encoded_by_their_own_lengths(encode: Callable[..., Tensor]) -> None:
    model, config = Words(encode), config_of()

    program = lower(model, config)

    assert program.decided == {"counts"}
    assert_answers_alone(model, config, program, BATCHES)


class Sentences(nn.Module):
    """Hierarchical attention: a packed GRU over the words of each sentence, then one over the sentences."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 5)
        self.words = nn.GRU(5, 4, batch_first=True, bidirectional=True)
        self.sentences = nn.GRU(8, 4, batch_first=True, bidirectional=True)
        self.score = nn.ModuleList([nn.Linear(8, 1) for _ in range(2)])
        self.out = nn.Linear(8, 3)

    def forward(self, chars: Tensor, counts: Tensor, lengths: Tensor) -> Any:
        batch, time, longest = chars.shape
        counts = counts.reshape(-1)
        words = self.embedding(chars.view(batch * time, longest))
        packed = pack_padded_sequence(words, counts.cpu(), batch_first=True, enforce_sorted=False)
        y, _ = pad_packed_sequence(self.words(packed)[0], batch_first=True, total_length=longest)
        sentences = self.attended(0, y, counts).view(batch, time, -1)
        packed = pack_padded_sequence(sentences, lengths.cpu(), batch_first=True, enforce_sorted=False)
        y, _ = pad_packed_sequence(self.sentences(packed)[0], batch_first=True)
        return self.out(self.attended(1, y, lengths))

    def attended(self, level: int, y: Tensor, lengths: Tensor) -> Tensor:
        padding = torch.arange(y.size(1)).unsqueeze(0) >= lengths.unsqueeze(1)
        scores = self.score[level](y).squeeze(2).masked_fill(padding, float("-inf"))
        return (torch.softmax(scores, 1).unsqueeze(2) * y).sum(1)


@pytest.mark.ci
def test_words_of_each_sentence_are_packed_within_packed_sentences() -> None:
    model, config = Sentences(), config_of()

    assert_answers_alone(model, config, lower(model, config), ([9, 1, 4, 16],))


@pytest.mark.long
def test_words_may_be_sorted_by_the_model() -> None:
    model, config = Words(sorted_by_hand), config_of()

    assert_answers_alone(model, config, lower(model, config), BATCHES)


@pytest.mark.long
def test_lengths_of_words_may_be_counted_from_their_characters() -> None:
    """Without a declared range: there are as many as the word has places, and at least one."""
    model, config = Counted(last_states), config_of(takes_lengths=False)

    program = lower(model, config)

    assert program.decided == frozenset()
    assert_answers_alone(model, config, program, BATCHES)


@pytest.mark.parametrize(
    ("declared", "said"),
    [("", "of no known range"), (", range: [0, 7]", "from 0 to 7"), (", range: [1, 9]", "from 1 to 9")],
)
def test_lengths_that_packing_may_refuse_are_refused_with_the_key_to_write(declared: str, said: str) -> None:
    """In eager mode, packing raises an error for them."""
    with pytest.raises(LoweringError, match=rf"lengths within a timestep {said}.*such as range: \[1, 7\]"):
        lower(Words(last_states), config_of(range_of_lengths=declared))


class PackedTwice(Words):
    def forward(self, chars: Tensor, counts: Tensor, lengths: Tensor) -> Any:
        packed, sizes = (pack_padded_sequence(x, lengths.tolist(), True, False) for x in (chars, counts))
        words = self.encode(self, packed.data, sizes.data)
        packed = PackedSequence(words, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
        return pad_packed_sequence(self.gru(packed)[0], batch_first=True)[0]


def lengths_as_a_list(m: Words, chars: Tensor, counts: Tensor) -> Tensor:
    packed = pack_padded_sequence(m.embedding(chars), counts.tolist(), batch_first=True, enforce_sorted=False)
    _, (h, _) = m.chars(packed)
    return torch.cat([h[0], h[1]], 1)


@pytest.mark.ci
def test_lengths_of_words_keep_their_range_when_they_are_packed() -> None:
    model, config = PackedTwice(lengths_as_a_list), config_of()

    assert_answers_alone(model, config, lower(model, config), ([9, 1, 4, 16],))


def test_a_layer_on_packed_words_is_refused_with_what_to_write() -> None:
    """The data of packed words has no order that a request alone has."""

    def scored(m: Words, chars: Tensor, counts: Tensor) -> Tensor:
        packed = pack_padded_sequence(m.embedding(chars), counts.cpu(), batch_first=True, enforce_sorted=False)
        return torch.tanh(packed.data)

    with pytest.raises(LoweringError, match=r"tanh takes the data of packed seq.*_packing.*total_length=.*mask"):
        lower(Words(scored), config_of())


def test_padding_to_the_longest_word_is_refused_with_the_argument_to_pass() -> None:
    with pytest.raises(LoweringError, match=r"the longest of its sequences.*pass total_length=7"):
        lower(Words(longest_of_batch), config_of())
