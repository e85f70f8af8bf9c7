"""A model that only its own code can answer: a branch on values, and an error for some of them."""

import torch
from torch import nn

FORBIDDEN = 99.0


class Decider(nn.Module):
    """Frames by one of two recurrences."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = nn.GRU(3, 4, batch_first=True), nn.LSTM(3, 4, batch_first=True)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        if frames[0, 0, 0] == FORBIDDEN:
            raise ValueError("forbidden")
        scores: torch.Tensor = self.large(frames)[0].flip(1) if frames.abs().max() > 3 else self.small(frames)[0]
        return scores
