"""Models that only look causal, and cannot run in chunks: typical code around a recurrence.

Each has its configuration in `model_cases.py`.
"""

import torch
from causal_models import OneLstm, Outputs
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class FirstStep(OneLstm):
    """The first timestep of the second of two recurrences."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Outputs:
        return self.out(self.lstm(x)[0][:, 0])  # the first


class PositionsEmbedded(OneLstm):
    """A table of positions, indexed by arange."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Embedding(64, 6)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Outputs:
        steps = torch.arange(x.size(1))
        return self.lstm(x + self.positions(steps)[None])[0]  # embedded


class PositionsSliced(OneLstm):
    """A table of positions, cut to the sequences; all zeros, as before training."""

    def __init__(self) -> None:
        super().__init__()
        self.positions: torch.Tensor
        self.register_buffer("positions", torch.zeros(1, 64, 6))

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Outputs:
        return self.lstm(x + self.positions[:, : x.size(1)])[0]  # sliced


class AllButTheLast(OneLstm):
    """The mean without each sequence's last timestep."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Outputs:
        inner = torch.arange(1, x.size(1) + 1)[None, :] < lengths[:, None]  # inner
        return (self.lstm(x)[0] * inner[:, :, None]).sum(1) / lengths[:, None]


class PositionsAreAnAnswer(OneLstm):
    """The index of every timestep, and its scores."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Outputs:
        return self.lstm(x)[0], torch.arange(x.size(1)).expand(x.size(0), -1)  # numbers


class EncoderDecoder(OneLstm):
    """A decoder that starts from the encoder's final state, and reads the same sequence again."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.LSTM(6, 8, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Outputs:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        _, state = self.lstm(packed)
        decoded, _ = self.decoder(packed, state)  # decoder
        return pad_packed_sequence(decoded, batch_first=True)[0]


class EndAsQuery(OneLstm):
    """Attention of the final state over all timesteps."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Outputs:
        y, (h, _) = self.lstm(x)
        mask = torch.arange(x.size(1))[None, :] < lengths[:, None]
        scores = (y * h[-1][:, None, :]).sum(-1)  # query
        weights = scores.masked_fill(~mask, float("-inf")).softmax(1)
        return (weights[:, :, None] * y).sum(1)


class PlaceOfTheMaximum(OneLstm):
    """The maxima of the outputs over time, and their timesteps."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Outputs:
        y, _ = self.lstm(x)
        mask = torch.arange(x.size(1))[None, :] < lengths[:, None]
        values, places = y.masked_fill(~mask[:, :, None], float("-inf")).max(1)  # places
        return values, places


class WritesIntoAView(OneLstm):
    """One feature is clamped in place, which only very large values reveal."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Outputs:
        y = x * 1000.0
        y[:, :, 0].clamp_(max=2000.0)  # bounded
        return self.lstm(y)[0]


class StateWrittenInPlace(OneLstm):
    """An initial state of zeros, into which ones are written."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Outputs:
        h = torch.zeros(1, x.size(0), 8)
        h[:, :, 0] = 1.0  # ones
        return self.lstm(x, (h, torch.zeros(1, x.size(0), 8)))[0]


class FoldedSum(OneLstm):
    """Heads that are folded into the batch while they are summed."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Outputs:
        y, _ = self.unpacked(x, lengths)
        heads = y.view(y.size(0), y.size(1), 2, 4).transpose(1, 2).reshape(y.size(0) * 2, y.size(1), 4)
        return heads.sum(1).view(y.size(0), 8)  # folded


class BackAndForth(OneLstm):
    """One direction over the sequence, then the sum of all timesteps is added to each."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Outputs:
        y, _ = self.unpacked(x, lengths)
        return y + y.sum(1, keepdim=True)  # added


class FlattenedSteps(OneLstm):
    """All timesteps of all sequences in one dimension for a linear layer, and back."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Outputs:
        y, _ = self.unpacked(x, lengths)
        return self.out(y.reshape(-1, 8)).view(y.size(0), y.size(1), 4)
