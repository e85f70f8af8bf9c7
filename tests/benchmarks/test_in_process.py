"""The benchmark of many sequences in one process compares equal work."""

from __future__ import annotations

import torch
from benchmarks.in_process import BATCH, TOKENS, eager_packed, random_sequences, standings
from benchmarks.rest.model import TokenClassifier


def test_the_sequences_are_the_same_in_every_run() -> None:
    """Their lengths differ widely."""
    sequences = random_sequences(200)

    assert sequences == random_sequences(200)
    assert min(map(len, sequences)) < 8
    assert max(map(len, sequences)) > 60
    assert all(0 <= token < TOKENS for ids in sequences for token in ids)


@torch.inference_mode()
def test_eager_mode_answers_each_sequence_in_its_place() -> None:
    """More than one batch."""
    torch.manual_seed(0)
    model = TokenClassifier(features=4, hidden=8).eval()
    sequences = random_sequences(BATCH + 3)
    alone = [model(torch.tensor([ids]), torch.tensor([len(ids)]))[0].tolist() for ids in sequences]

    torch.testing.assert_close(torch.tensor(eager_packed(model, sequences)), torch.tensor(alone))


def test_each_floor_can_be_missed() -> None:
    """A slow engine, and a slow way to it."""
    slow = standings({"predict": 1.0, "eager packed": 2.1, "engine": 0.8}, 1.5)
    fast = standings({"predict": 1.0, "eager packed": 3.1, "engine": 0.96}, 0.1)

    assert [one.reached for one in slow] == ["missed"] * 3
    assert [one.reached for one in fast] == ["aim"] * 3
