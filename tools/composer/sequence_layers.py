"""Parts of random models that read all timesteps: recurrences, attention, summaries, and parts around another part."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from .layers import Part, Place

_STATES = ("default", "zeros", "learned", "of the first step")


class Recurrence(Part):
    """An LSTM, GRU or RNN: one or two layers, one or two directions, packed or not, with an initial state."""

    variants = ("LSTM", "GRU", "RNN")
    masked_variants = ("packed LSTM", "packed GRU", "packed RNN")

    def draw(self, choose: random.Random, place: Place) -> None:
        self.layers, self.hidden = choose.choice((1, 1, 2)), choose.choice((3, 5))
        both = choose.random() < 0.5
        self.states = self.layers * (2 if both else 1)
        self.initial = choose.choice(_STATES)
        self.reads_state = choose.random() < 0.3
        kind = getattr(nn, self.variant.removeprefix("packed "))
        self.layer = kind(place.width, self.hidden, self.layers, batch_first=place.time == 1, bidirectional=both)
        self.out = nn.Linear(self.hidden * (2 if both else 1), place.width)
        self.of_state = nn.Linear(self.hidden, place.width)
        self.learned = nn.Parameter(torch.rand(self.states, 1, self.hidden) - 0.5)
        self.of_first = nn.Linear(place.width, self.hidden)

    def extra_repr(self) -> str:
        return f"{self.variant}, initial state {self.initial}{', reads the last state' * self.reads_state}"

    def changed(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        state = self._initial(x)
        if self.variant.startswith("packed") and lengths is not None:
            batch_first = self.time == 1
            packed = pack_padded_sequence(x, lengths.cpu(), batch_first, enforce_sorted=False)
            packed, last = self.layer(packed, state)
            y, _ = pad_packed_sequence(packed, batch_first)
        else:
            y, last = self.layer(x, state)
        states: Tensor = self.out(y)
        if self.reads_state:
            hidden = last[0] if isinstance(last, tuple) else last
            states = states + self.of_state(hidden[-1]).unsqueeze(self.time)
        return states

    def _initial(self, x: Tensor) -> Any:
        rows = x.size(1 - self.time)
        if self.initial == "default":
            return None
        if self.initial == "zeros":
            state = x.new_zeros(self.states, rows, self.hidden)
        elif self.initial == "learned":
            state = self.learned.expand(-1, rows, -1).contiguous()
        else:
            first = torch.tanh(self.of_first(x.select(self.time, 0)))
            state = first.unsqueeze(0).repeat(self.states, 1, 1)
        return (state, torch.zeros_like(state)) if isinstance(self.layer, nn.LSTM) else state


class CellLoop(Part):
    """A loop in Python over the timesteps, with an LSTMCell or GRUCell."""

    variants = ("LSTMCell", "GRUCell", "LSTMCell backward", "GRUCell unbound")

    def draw(self, choose: random.Random, place: Place) -> None:
        self.hidden = choose.choice((3, 5))
        self.cell = getattr(nn, self.variant.split()[0])(place.width, self.hidden)
        self.out = nn.Linear(self.hidden, place.width)

    def changed(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        hidden = x.new_zeros(x.size(1 - self.time), self.hidden)
        memory = torch.zeros_like(hidden)
        states = []
        if self.variant.endswith("unbound"):
            for step in x.unbind(self.time):
                hidden = self.cell(step, hidden)
                states.append(hidden)
        else:
            backward = self.variant.endswith("backward")
            for index in range(x.size(self.time)):
                step = x.select(self.time, -1 - index if backward else index)
                if isinstance(self.cell, nn.LSTMCell):
                    hidden, memory = self.cell(step, (hidden, memory))
                else:
                    hidden = self.cell(step, hidden)
                states.append(hidden)
            states = states[::-1] if backward else states
        outputs: Tensor = self.out(torch.stack(states, self.time))
        return outputs


class Attention(Part):
    """An attention over time, added to the sequence or in its place."""

    variants = ("pooled", "several heads", "additive", "scaled product", "causal")
    masked_variants = ("masked pooled", "masked heads")

    def draw(self, choose: random.Random, place: Place) -> None:
        width = place.width
        self.score = nn.Linear(width, 1)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.heads = nn.MultiheadAttention(width, 2, batch_first=place.time == 1)

    def changed(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        if "heads" in self.variant:
            return self._by_heads(x, lengths)
        if "pooled" in self.variant or self.variant == "additive":
            return x + self._context(x, lengths)
        rows = x if self.time == 1 else x.transpose(0, 1)
        query, key, value = self.query(rows), self.key(rows), self.value(rows)
        rows = functional.scaled_dot_product_attention(query, key, value, is_causal=self.variant == "causal")
        return rows if self.time == 1 else rows.transpose(0, 1)

    def _by_heads(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        padding = None
        if self.variant == "masked heads" and lengths is not None:
            padding = ~self.mask(x, lengths).squeeze(2)
            padding = padding if self.time == 1 else padding.transpose(0, 1)
        attended: Tensor = self.heads(x, x, x, key_padding_mask=padding, need_weights=False)[0]
        return x + attended

    def _context(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """Return the weighted mean over time, with a time dimension of one."""
        if self.variant == "additive":
            question = self.query(x.select(self.time, -1)).unsqueeze(self.time)
            scores = self.score(torch.tanh(self.key(x) + question))
        else:
            scores = self.score(x)
        if self.variant == "masked pooled" and lengths is not None:
            scores = scores.masked_fill(~self.mask(x, lengths), float("-inf"))
        context: Tensor = (torch.softmax(scores, self.time) * self.value(x)).sum(self.time, keepdim=True)
        return context


class Summary(Part, ABC):
    """A vector of the whole sequence, [B, F]: added to every timestep, or an output of the model."""

    def draw(self, choose: random.Random, place: Place) -> None:
        self.layer = nn.Linear(place.width, place.width)

    def changed(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        return x + torch.tanh(self.layer(self.vector(x, lengths))).unsqueeze(self.time)

    @abstractmethod
    def vector(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """Return the vector, [B, F]."""


class LastStep(Summary):
    """The last timestep of each row."""

    variants = ("index -1", "size - 1", "slice")
    masked_variants = ("gathered", "indexed by lengths")

    def vector(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        if self.variant == "gathered" and lengths is not None:
            ends = (lengths - 1).unsqueeze(1).expand(-1, self.width).unsqueeze(self.time)
            return x.gather(self.time, ends).squeeze(self.time)
        if self.variant == "indexed by lengths" and lengths is not None:
            rows = torch.arange(x.size(1 - self.time))
            return x[rows, lengths - 1] if self.time == 1 else x[lengths - 1, rows]
        if self.variant == "slice":
            return (x[:, -1:] if self.time == 1 else x[-1:]).squeeze(self.time)
        last = -1 if self.variant == "index -1" else x.size(self.time) - 1
        return x[:, last] if self.time == 1 else x[last]


class Reduction(Summary):
    """A reduction over time."""

    variants = ("mean", "sum", "max", "min", "logsumexp", "deviation")
    masked_variants = ("mean by lengths", "masked max", "mean by mask")

    def vector(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        if lengths is not None and self.variant in self.masked_variants:
            return self._of_real_steps(x, lengths)
        reductions: dict[str, Callable[[], Tensor]] = {
            "mean": lambda: x.mean(self.time),
            "sum": lambda: x.sum(self.time) / 8,
            "max": lambda: x.max(self.time)[0],
            "min": lambda: x.amin(self.time),
            "logsumexp": lambda: torch.logsumexp(x, self.time),
            "deviation": lambda: torch.sqrt(x.var(self.time, unbiased=False) + 0.1),
        }
        return reductions[self.variant]()

    def _of_real_steps(self, x: Tensor, lengths: Tensor) -> Tensor:
        mask = self.mask(x, lengths)
        if self.variant == "masked max":
            return x.masked_fill(~mask, float("-inf")).amax(self.time)
        if self.variant == "mean by mask":
            return torch.where(mask, x, torch.zeros_like(x)).sum(self.time) / mask.sum(self.time)
        return (x * mask).sum(self.time) / lengths.unsqueeze(1).to(x.dtype)


class Join(Part):
    """A part around an inner part, which keeps the number of timesteps."""

    def __init__(self, choose: random.Random, place: Place, inner: Part) -> None:
        super().__init__(choose, place)
        self.inner = inner


class Skip(Join):
    """A connection around the inner part."""

    variants = ("sum", "half", "weighted", "gated")

    def draw(self, choose: random.Random, place: Place) -> None:
        self.weight = nn.Parameter(torch.tensor(0.3))
        self.gate = nn.Linear(place.width, place.width)

    def changed(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        y: Tensor = self.inner(x, lengths)[0]
        if self.variant == "sum":
            return x + y
        if self.variant == "half":
            return (x + y) * 0.5
        weight = self.weight if self.variant == "weighted" else torch.sigmoid(self.gate(x))
        return weight * x + (1 - weight) * y


class Concatenation(Join):
    """A concatenation of the input and what the inner part makes of it, along features or along time."""

    variants = ("features", "with the mean", "time", "token before", "token behind", "shifted")

    def draw(self, choose: random.Random, place: Place) -> None:
        self.keeps_time = self.variant in ("features", "with the mean", "shifted")
        self.narrow = nn.Linear(2 * place.width, place.width)
        self.token = nn.Parameter(torch.rand(1, 1, place.width) - 0.5)

    def steps(self, timesteps: Any) -> Any:
        return timesteps if self.keeps_time else 2 * timesteps if self.variant == "time" else timesteps + 1

    def changed(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        y: Tensor = self.inner(x, lengths)[0]
        if self.keeps_time and self.variant != "shifted":
            both = [x, y] if self.variant == "features" else [y, x.mean(self.time, keepdim=True).expand_as(y)]
            narrowed: Tensor = self.narrow(torch.cat(both, 2))
            return narrowed
        if self.variant == "time":
            return torch.cat([x, y], self.time)
        if self.variant == "shifted":
            first = torch.zeros_like(y.narrow(self.time, 0, 1))
            return x + torch.cat([first, y[:, :-1] if self.time == 1 else y[:-1]], self.time)
        rows = x.size(1 - self.time)
        token = self.token.expand(*((rows, -1, -1) if self.time == 1 else (-1, rows, -1)))
        return torch.cat([token, y] if self.variant == "token before" else [y, token], self.time)


class Flip(Join):
    """A sequence in reversed order of time."""

    variants = ("there", "there and back", "sum of both")

    def changed(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        y: Tensor = self.inner(x.flip(self.time), lengths)[0]
        if self.variant == "there":
            return y
        return y.flip(self.time) if self.variant == "there and back" else y + x
