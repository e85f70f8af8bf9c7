"""Sequences within each timestep, such as the characters of words, packed by their own lengths."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from input_configs import config_of
from long_cases import with_long
from ragged import lower_exact
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from torchserve_neuron_lstm.config.schema import ServingConfig
from torchserve_neuron_lstm.lowering import lower
from torchserve_neuron_lstm.lowering.errors import LoweringError

LONGEST_WORD = 7


def words_of(counts: str = ", counts: {dtype: int64, shape: [batch, time], range: [1, 7]}") -> ServingConfig:
    chars = f"chars: {{dtype: int64, shape: [batch, time, {LONGEST_WORD}], range: [0, 29]}}"
    return config_of(f"{{{chars}{counts}}}", "lengths: lengths")


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


def packed(m: Words, chars: Tensor, lengths: Any) -> PackedSequence:
    return pack_padded_sequence(m.embedding(chars), lengths, batch_first=True, enforce_sorted=False)


def last_states(m: Words, chars: Tensor, counts: Tensor) -> Tensor:
    _, (h, _) = m.chars(packed(m, chars, counts.cpu()))
    return torch.cat([h[0], h[1]], 1)


def lengths_as_a_list(m: Words, chars: Tensor, counts: Tensor) -> Tensor:
    _, (h, _) = m.chars(packed(m, chars, counts.tolist()))
    return torch.cat([h[0], h[1]], 1)


def sorted_by_hand(m: Words, chars: Tensor, counts: Tensor) -> Tensor:
    ordered, order = counts.sort(descending=True)
    _, (h, _) = m.chars(pack_padded_sequence(m.embedding(chars)[order], ordered.cpu(), batch_first=True))
    return torch.cat([h[0], h[1]], 1)[order.argsort()]


def all_states(m: Words, chars: Tensor, counts: Tensor) -> Tensor:
    states = m.chars(packed(m, chars, counts.cpu()))[0]
    return pad_packed_sequence(states, batch_first=True, padding_value=-2.0, total_length=LONGEST_WORD)[0].max(1)[0]


@pytest.mark.parametrize(
    "encode", with_long([all_states, last_states, sorted_by_hand], "last_states", "sorted_by_hand")
)
def test_words_are_encoded_by_their_own_lengths(encode: Callable[..., Tensor]) -> None:
    assert lower_exact(Words(encode), words_of()).decided == {"counts"}


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


class PackedTwice(Words):
    """The lengths of words keep their range when they are packed with the sentences."""

    def __init__(self) -> None:
        super().__init__(lengths_as_a_list)

    def forward(self, chars: Tensor, counts: Tensor, lengths: Tensor) -> Any:
        packed, sizes = (pack_padded_sequence(x, lengths.tolist(), True, False) for x in (chars, counts))
        words = self.encode(self, packed.data, sizes.data)
        packed = PackedSequence(words, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
        return pad_packed_sequence(self.gru(packed)[0], batch_first=True)[0]


@pytest.mark.ci
@pytest.mark.parametrize("make", [Sentences, PackedTwice])
def test_words_of_each_sentence_are_packed_within_packed_sentences(make: Callable[[], nn.Module]) -> None:
    lower_exact(make(), words_of(), ([9, 1, 4, 16],))


@pytest.mark.long
def test_lengths_of_words_may_be_counted_from_their_characters() -> None:
    """Without a declared range: there are as many as the word has places, and at least one."""
    assert lower_exact(Counted(last_states), words_of(counts="")).decided == frozenset()


@pytest.mark.parametrize(
    ("declared", "said"),
    [("", "of no known range"), (", range: [0, 7]", "from 0 to 7"), (", range: [1, 9]", "from 1 to 9")],
)
def test_lengths_that_packing_may_refuse_are_refused_with_the_key_to_write(declared: str, said: str) -> None:
    """In eager mode, packing raises an error for them."""
    with pytest.raises(LoweringError, match=rf"lengths {said}.*such as range: \[1, 7\]"):
        lower(Words(last_states), words_of(f", counts: {{dtype: int64, shape: [batch, time]{declared}}}"))


@pytest.mark.parametrize(
    ("encode", "message"),
    [
        (
            lambda m, chars, counts: torch.tanh(packed(m, chars, counts.cpu()).data),
            r"tanh takes the data of packed seq.*_packing.*total_length=.*mask",
        ),
        (
            lambda m, chars, counts: pad_packed_sequence(m.chars(packed(m, chars, counts.cpu()))[0], True)[0].max(1)[0],
            r"the longest of its sequences.*pass total_length=7",
        ),
    ],
)
def test_other_uses_of_packed_words_are_refused_with_what_to_write(encode: Callable[..., Tensor], message: str) -> None:
    with pytest.raises(LoweringError, match=message):
        lower(Words(encode), words_of())
