"""The next-byte LSTM of `surprise/`, with its weights, for text that arrives as it is typed."""

import math

from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class TypedSurprise(nn.Module):
    """A scorer of text, byte by byte: -log2 of the probability that the model gave to the actual byte.

    `surprise/model.py` shifts the text by one byte to get the byte before each. A chunk of a stream does not contain
    the byte before its first one, so here both are inputs.
    """

    def __init__(self, hidden: int = 256, embedding: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, embedding)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True)
        self.next_byte = nn.Linear(hidden, 256)

    def forward(self, before: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:
        """Map the byte before each byte, bytes int64[B, T] and lengths[B] to surprise in bits, float32[B, T]."""
        packed = pack_padded_sequence(self.embed(before), lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=ids.shape[1])
        scores: Tensor = self.next_byte(states).log_softmax(dim=-1)
        return scores.gather(2, ids[:, :, None])[:, :, 0] / -math.log(2)
