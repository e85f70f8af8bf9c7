"""Models of typical code around nn.LSTM, nn.GRU and nn.RNN. Each has its configuration in `model_cases.py`."""

import torch
from causal_models import OneLstm
from causal_models import Outputs as Answer
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class FixedLength(nn.Module):
    """A plain LSTM over a whole sequence, forward() without lengths; time-major."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(input_size=3, hidden_size=7)

    def forward(self, inputs: torch.Tensor) -> Answer:
        output, (ht, ct) = self.lstm(inputs)
        return output, (ht, ct)


class PackedSorted(nn.Module):
    """Packed input, padded output, pre-sorted; time-major."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(input_size=3, hidden_size=7)

    def forward(self, inputs: torch.Tensor, lengths: torch.Tensor) -> Answer:
        packed, (ht, ct) = self.lstm(pack_padded_sequence(inputs, lengths, enforce_sorted=True))
        return pad_packed_sequence(packed)[0], ht, ct


class Tagger(nn.Module):
    """Embedding, deep bidirectional LSTM with dropout, unsorted packing, a score per timestep."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 12)
        self.lstm = nn.LSTM(12, 10, layers, batch_first=True, bidirectional=True, dropout=0.3)
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(20, 5)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> Answer:
        packed = pack_padded_sequence(self.embed(ids), lengths.cpu(), batch_first=True, enforce_sorted=False)
        y, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.out(self.drop(y))


class OneHotLetters(nn.Module):
    """Letters as one-hot vectors in place of an embedding, a packed GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(26, 9, batch_first=True)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> Answer:
        letters = torch.nn.functional.one_hot(ids, num_classes=26).float()
        packed = pack_padded_sequence(letters, lengths.cpu(), batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.gru(packed)[0], batch_first=True)[0]


class ProjectedFourLayers(nn.Module):
    """Four layers, projection, no bias, padded to the input's length with -1."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 9, 4, batch_first=True, bias=False, proj_size=4)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Answer:
        packed, (h, c) = self.lstm(pack_padded_sequence(x, lengths, True, False))
        y, _ = pad_packed_sequence(packed, batch_first=True, padding_value=-1.0, total_length=x.size(1))
        return {"y": y, "state": (h, c)}


class GruWithState(nn.Module):
    """A bidirectional two-layer GRU whose initial state is an input."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(6, 8, 2, batch_first=True, bidirectional=True)

    def forward(self, x: torch.Tensor, h0: torch.Tensor, lengths: torch.Tensor) -> Answer:
        packed, h = self.gru(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False), h0)
        return pad_packed_sequence(packed, batch_first=True)[0], h


class LstmWithState(nn.Module):
    """A bidirectional LSTM with (h0, c0) as a tuple argument; time-major, fixed total length."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, bidirectional=True)

    def forward(self, x: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor], lengths: torch.Tensor) -> Answer:
        packed, (h, c) = self.lstm(pack_padded_sequence(x, lengths, enforce_sorted=False), state)
        return pad_packed_sequence(packed, total_length=40)[0], h, c


class ResidualStack(nn.Module):
    """GRU, then LSTM with a learned initial state, layers and a residual between, LayerNorm after."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.GRU(6, 6, batch_first=True)
        self.mid = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
        self.second = nn.LSTM(6, 6, batch_first=True)
        self.h0 = nn.Parameter(torch.randn(1, 1, 6))
        self.c0 = nn.Parameter(torch.randn(1, 1, 6))
        self.norm = nn.LayerNorm(6)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Answer:
        y, _ = self.first(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        y, _ = pad_packed_sequence(y, batch_first=True)
        y = x + self.mid(y)
        batch = x.shape[0]
        state = self.h0.expand(1, batch, 6).contiguous(), self.c0.expand(1, batch, 6).contiguous()
        z, _ = self.second(pack_padded_sequence(y, lengths, batch_first=True, enforce_sorted=False), state)
        return self.norm(y + pad_packed_sequence(z, batch_first=True)[0])


class AttentionPooling(nn.Module):
    """Masked attention over the outputs of a bidirectional LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8, padding_idx=0)
        self.lstm = nn.LSTM(8, 8, batch_first=True, bidirectional=True)
        self.score = nn.Linear(16, 1)
        self.out = nn.Linear(16, 3)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> Answer:
        packed = pack_padded_sequence(self.embed(ids), lengths, batch_first=True, enforce_sorted=False)
        y, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        mask = torch.arange(y.size(1))[None, :] < lengths[:, None]
        weights = self.score(y).squeeze(-1).masked_fill(~mask, float("-inf")).softmax(1)
        return self.out((weights.unsqueeze(-1) * y).sum(1))


class SelfAttention(nn.Module):
    """Masked self-attention over a GRU's outputs; the attention map is also an output."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(6, 8, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Answer:
        packed, _ = self.gru(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        y, _ = pad_packed_sequence(packed, batch_first=True)
        mask = torch.arange(y.size(1))[None, None, :] < lengths[:, None, None]
        attention = (y @ y.transpose(1, 2)).masked_fill(~mask, float("-inf")).softmax(-1)
        return {"context": attention @ y, "attention": attention}


class MaskedMeanPooling(OneLstm):
    """The mean of the real timesteps, the sum divided by the true lengths; and their maximum."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Answer:
        y, n = self.unpacked(x, lengths)
        mask = (torch.arange(y.size(1)).unsqueeze(0) < n.unsqueeze(1)).unsqueeze(2)
        return (y * mask).sum(1) / n.unsqueeze(1), y.masked_fill(~mask, -1e9).amax(1)


class TwoInputs(nn.Module):
    """Ids and frames together, with an input that has no time."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 5)
        self.lstm = nn.LSTM(9, 8, batch_first=True)
        self.out = nn.Linear(8 + 3, 2)

    def forward(self, ids: torch.Tensor, frames: torch.Tensor, speaker: torch.Tensor, lengths: torch.Tensor) -> Answer:
        x = torch.cat([self.embed(ids), frames], -1)
        _, (h, _) = self.lstm(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        return self.out(torch.cat([h[-1], speaker], 1))


class LastStepClassifier(OneLstm):
    """`y[:, -1]` of a plain LSTM, forward() without lengths."""

    def __init__(self) -> None:
        super().__init__(layers=2)

    def forward(self, x: torch.Tensor) -> Answer:
        y, _ = self.lstm(x)
        return self.out(y[:, -1, :])


class CausalPerStep(OneLstm):
    """A plain LSTM with LayerNorm and linear layers per timestep, forward() without lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> Answer:
        return self.out(torch.relu(self.norm(self.lstm(x)[0])))


class VanillaRnn(nn.Module):
    """A bidirectional tanh RNN, packed."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(6, 5, 2, batch_first=True, bidirectional=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Answer:
        packed, h = self.rnn(pack_padded_sequence(x, lengths.tolist(), batch_first=True, enforce_sorted=False))
        return pad_packed_sequence(packed, batch_first=True)[0], h


class MeanOverTime(OneLstm):
    """A mean over all timesteps without lengths: only the trace of one request is exact."""

    def forward(self, x: torch.Tensor) -> Answer:
        return self.lstm(x)[0].mean(1)


class MedianOverTime(OneLstm):
    """A median over all timesteps without lengths, which has no rule: lengths must be exact."""

    def forward(self, x: torch.Tensor) -> Answer:
        return self.lstm(x)[0].median(1).values


class NoBatch(nn.Module):
    """One sequence [T, F] without a batch dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, 2)
        self.out = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> Answer:
        return self.out(self.lstm(x)[0])


class OptionalPacking(nn.Module):
    """A model that packs only if a constant argument says so."""

    def __init__(self, hidden: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 6)
        self.lstm = nn.LSTM(6, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 2)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor, use_pack_unpack: bool = False) -> Answer:
        x = self.embed(ids)
        if use_pack_unpack:
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            y, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        else:
            y, _ = self.lstm(x)
        return self.out(y)


class NoTime(nn.Module):
    """A model without time: only batch buckets."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, x: torch.Tensor) -> Answer:
        return self.layers(x)
