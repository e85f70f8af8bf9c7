"""Models that are served by their own code: each is the text of a user's file."""

HEAD = """
import torch
from torch import nn


"""

BRANCH_ON_VALUES = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.small, self.large = nn.GRU(3, 4, batch_first=True), nn.GRU(3, 4, batch_first=True)

    def forward(self, x):
        if x.abs().max() > 3:
            return self.large(x)[0].flip(1)
        return self.small(x)[0]
"""

NOT_PUT_BACK = """
class Log(dict):
    def clear(self):
        raise TypeError("append only")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.seen = nn.GRU(3, 4, batch_first=True), Log()

    def forward(self, x):
        self.seen[len(self.seen)] = float(x.sum())
        return self.rnn(x)[0] * len(self.seen)
"""

GREEDY_DECODER = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.encoder, self.cell, self.out = nn.GRU(3, 4, batch_first=True), nn.GRUCell(4, 4), nn.Linear(4, 7)

    def forward(self, x):
        state = self.encoder(x)[1][0]
        word, words = torch.zeros(1, dtype=torch.int64), []
        while len(words) < x.shape[1] + 2:
            state = self.cell(self.embed(word), state)
            word = self.out(state).argmax(1)
            if word.item() == 3 or state.sum().item() > 0.3:
                break
            words.append(word.item())
        return {"words": words, "score": state.sum().item()}
"""

SPARSE = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(3, 3)

    def forward(self, x):
        kept = (x[0] * (x[0] > 0)).to_sparse()
        return torch.sparse.mm(kept, self.out.weight).relu().to_sparse(), self.out(x)
"""

NUMPY = """
import numpy as np


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(3, 2)

    def forward(self, x):
        order = np.argsort(x.numpy().sum(axis=(0, 2)), kind="stable")
        return self.out(x[:, torch.from_numpy(order)]), np.float32(order.std()), order
"""

STATE = """
CALLS = {"count": 0}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(3, 4)
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("hidden", torch.zeros(1, 4), persistent=False)
        self.steps, self.last = [], None

    def forward(self, x):
        CALLS["count"] += 1
        self.seen += 1
        for t in range(x.shape[1]):
            self.hidden = self.cell(x[:, t], self.hidden)
            self.steps.append(self.hidden)
        if self.last is not None and (self.last > 1).any():
            return torch.stack(self.steps, 1) * self.seen
        self.last = x
        return torch.stack(self.steps, 1) * CALLS["count"] * self.seen
"""

HIDDEN_STATE = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(3, 2)
        self.factors = iter(range(1, 1000000))

    def forward(self, x):
        return self.out(x) * next(self.factors)
"""

RANDOM = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(3, 2)

    def forward(self, x):
        return self.out(x + torch.randn_like(x))
"""

RANDOM_CONSTRUCTOR = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(3, 2)
        self.factor = torch.rand(1).item()

    def forward(self, x):
        if x.sum() > 1e9:
            return self.out(x)
        return self.out(x) * self.factor
"""

SWALLOWED = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(3, 2)

    def forward(self, x):
        try:
            scale = float(x.max())
        except Exception:
            scale = 100.0
        return self.out(x) * scale
"""

FAILING = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(5, 2)

    def forward(self, x):
        return self.out(x)
"""

SCRIPTED = """
class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(3, 2)

    def forward(self, x):
        return self.out(x).relu()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.jit.script(Inner())

    def forward(self, x):
        return self.inner(x).cumsum(1)
"""

SCRIPTED_CLASS = """
class Model(torch.jit.ScriptModule):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(3, 2)

    @torch.jit.script_method
    def forward(self, x):
        return self.out(x).cumsum(1)
"""

THROUGH_DATA = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(3, 2)
        self.register_buffer("sum", torch.zeros(2))

    def forward(self, x):
        self.sum.data.add_(x.mean())
        return self.out(x) + self.sum if x.sum() > 0 else self.out(x) - self.sum
"""

FAILS_ON_PADDING = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.gru = nn.Embedding(1, 3), nn.GRU(3, 4, batch_first=True)

    def forward(self, x):
        return self.gru(self.embed((x[..., 0] > 2000).long()))[0]
"""

CODE_OF = {
    "fails on padding": FAILS_ON_PADDING,
    "branch on values": BRANCH_ON_VALUES,
    "greedy decoder": GREEDY_DECODER,
    "sparse": SPARSE,
    "numpy": NUMPY,
    "state": STATE,
    "swallowed errors": SWALLOWED,
    "scripted": SCRIPTED,
    "scripted class": SCRIPTED_CLASS,
    "written through data": THROUGH_DATA,
}
"""Models whose answers follow from the request alone, once their state is put back."""
