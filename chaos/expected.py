"""The expected answer to every chunk: that of the model in eager mode for the whole sequence at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .model import Tagger
from .script import Chunk, Script


@dataclass(frozen=True)
class Expected:
    """The expected answers of one session."""

    tags: torch.Tensor
    """Tags [tokens, 4] of the whole sequence at once."""
    topics: torch.Tensor
    """Topics [chunks, 3] after each chunk."""

    def of(self, chunk: Chunk) -> dict[str, torch.Tensor]:
        """The expected answer to a chunk."""
        return {"tags": self.tags[chunk.begin : chunk.end], "topic": self.topics[chunk.number]}


@torch.inference_mode()
def expect(model: Tagger, script: Script) -> Expected:
    """Run the model once in eager mode, with a row for the text up to the end of each chunk.

    The last row is the whole text.
    """
    ids = torch.tensor([script.tokens]).expand(len(script.ends), -1)
    tags, topics = model(ids, torch.tensor(script.ends))
    return Expected(tags[-1].clone(), topics.clone())


@torch.inference_mode()
def doubled(model: Tagger, script: Script, chunk: Chunk) -> dict[str, torch.Tensor]:
    """The answer to a chunk that was already applied once before."""
    ids = [*script.tokens[: chunk.end], *chunk.tokens]
    tags, topics = model(torch.tensor([ids]), torch.tensor([len(ids)]))
    return {"tags": tags[0, chunk.end :], "topic": topics[0]}
