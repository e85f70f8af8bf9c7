"""What every piece must be answered: what the model says in eager mode to the whole sequence, uninterrupted."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .model import Tagger
from .script import Piece, Script


@dataclass(frozen=True)
class Expected:
    """Of one session."""

    tags: torch.Tensor
    """[tokens, 4], of the whole sequence at once."""
    topics: torch.Tensor
    """[pieces, 3], after each piece."""

    def of(self, piece: Piece) -> dict[str, torch.Tensor]:
        """The answer to a piece."""
        return {"tags": self.tags[piece.begin : piece.end], "topic": self.topics[piece.number]}


@torch.inference_mode()
def expect(model: Tagger, script: Script) -> Expected:
    """One run in eager mode: a row for the text up to the end of each piece, the last of which is all of it."""
    ids = torch.tensor([script.tokens]).expand(len(script.ends), -1)
    tags, topics = model(ids, torch.tensor(script.ends))
    return Expected(tags[-1].clone(), topics.clone())


@torch.inference_mode()
def doubled(model: Tagger, script: Script, piece: Piece) -> dict[str, torch.Tensor]:
    """What a piece would be answered, had it been applied once before."""
    ids = [*script.tokens[: piece.end], *piece.tokens]
    tags, topics = model(torch.tensor([ids]), torch.tensor([len(ids)]))
    return {"tags": tags[0, piece.end :], "topic": topics[0]}
