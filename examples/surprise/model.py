"""A next-byte LSTM: the surprise of each byte of a line, in bits."""

import math

from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

START = ord("\n")
"""The input of the model before the first byte: every line begins after a newline."""


class Surprise(nn.Module):
    """A scorer of text, byte by byte: -log2 of the probability that the model gave to the actual byte.

    An ordinary PackedSequence model, without any code for buckets, padding or TorchServe.
    """

    def __init__(self, hidden: int = 256, embedding: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, embedding)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True)
        self.next_byte = nn.Linear(hidden, 256)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Map bytes int64[B, T], right-padded, and their lengths[B] to surprise in bits, float32[B, T]."""
        before = pad(ids, (1, 0), value=START)[:, :-1]
        packed = pack_padded_sequence(self.embed(before), lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=ids.shape[1])
        scores: Tensor = self.next_byte(states).log_softmax(dim=-1)
        return scores.gather(2, ids[:, :, None])[:, :, 0] / -math.log(2)
