"""Score of every timestep by two GRU layers."""

from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Scorer(nn.Module):
    """A model that maps frames[B, T, 3] to scores[B, T, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(3, 8, num_layers=2, batch_first=True)
        self.score = nn.Linear(8, 4)

    def forward(self, frames: Tensor, lengths: Tensor) -> Tensor:
        packed, _ = self.gru(pack_padded_sequence(frames, lengths, batch_first=True, enforce_sorted=False))
        states, _ = pad_packed_sequence(packed, batch_first=True)
        scores: Tensor = self.score(states)
        return scores
