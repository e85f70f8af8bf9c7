"""Random models of random features.

A seed is drawn into a model in these steps; `draw_features` is the first.

1. 3 to 8 features, uniformly, and their order.
2. With equal chances: time-major or batch-first, with or without `lengths`, 4 or 6 features of a timestep.
3. One part for each feature, in the drawn order. It draws its variant: those that need lengths exist in models with
   lengths only. A skip connection, a concatenation or a flip takes the next part as its inner one if that keeps the
   number of timesteps, otherwise a separate layer.
4. `last step` and `reduction` are outputs of the request in every second model; otherwise they are added to each
   timestep where the order puts them.
5. A model without such an output has an output of each timestep. A second output of each timestep follows in half of
   the models that have room for it: a model has one or two outputs.

An embedding is always the first part, and makes ids of the input; otherwise the input is x[B, T, F]. Weights are
torch's defaults. The model must run in eager mode on every number of timesteps from 1 to 16, with finite outputs, and
in double precision with the same outputs up to 1e-6: a model that amplifies rounding errors has no right answer to
1e-5. If it does not, steps 2 to 5 are drawn again. No step depends on what lowering accepts.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

import torch
from torch import Tensor, nn

from .attention import Attention
from .features import draw_features
from .joins import Concatenation, Feedforward, Flip, Skip
from .model import (
    LONGEST,
    VOCABULARY,
    Composed,
    ComposedModel,
    ComposedOfSequences,
    ComposedWithLengths,
    alone,
    configuration,
)
from .norms import Norm
from .part import Part, Place
from .pointwise import Einsum, Elementwise, Transpose
from .recurrences import CellLoop, Recurrence
from .summaries import LastStep, Reduction
from .windows import Convolution, Pooling, StridedConvolution, Upsampling, ValidConvolution

_PARTS: dict[str, Callable[[random.Random, Place], Part]] = {
    "convolution": Convolution,
    "stride": StridedConvolution,
    "valid convolution": ValidConvolution,
    "pooling": Pooling,
    "upsampling": Upsampling,
    "norm": Norm,
    "attention": Attention,
    "recurrence": Recurrence,
    "cell loop": CellLoop,
    "elementwise": Elementwise,
    "einsum": Einsum,
    "transpose": Transpose,
}
_JOINS = {"skip": Skip, "concatenation": Concatenation, "flip": Flip}
_SUMMARIES = {"last step": LastStep, "reduction": Reduction}
_ATTEMPTS = 100
_ROUNDING = 1e-6


def compose(seed: int) -> ComposedModel:
    """Make the model of a seed, in eval mode, and its configuration; the same ones for every call.

    Raises:
        RuntimeError: no drawn model of these features runs in eager mode on every request.
    """
    features = draw_features(seed)
    for attempt in range(_ATTEMPTS):
        choose = random.Random(f"{seed}/{attempt}")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            composed = _Composition(choose, features).composed(seed)
            if _is_sound(composed.model):
                return composed
    raise RuntimeError(f"seed {seed}: no model of {', '.join(features)} runs on every length")


def requests(model: Composed, lengths: list[int], seed: int) -> list[Tensor]:
    """Draw a request for each length: x[T, F], or ids [T]."""
    rng = torch.Generator().manual_seed(seed)
    if model.embedding is not None:
        return [torch.randint(0, VOCABULARY, (length,), generator=rng) for length in lengths]
    return [torch.randn(length, model.width, generator=rng) for length in lengths]


class _Composition:
    """Parts that are drawn one after the other, each for the sequence that the parts before it leave."""

    def __init__(self, choose: random.Random, features: tuple[str, ...]) -> None:
        self.choose, self.features = choose, features
        self.time = choose.choice((0, 1))
        self.lengths = choose.random() < 0.5
        self.width = choose.choice((4, 6))
        self.shortest = 1
        self.parts: list[Part] = []
        self.heads: list[nn.Module] = []

    @property
    def place(self) -> Place:
        return Place(self.time, self.width, self.shortest, self.lengths)

    def composed(self, seed: int) -> ComposedModel:
        """Draw all parts and the outputs."""
        ids = "embedding" in self.features
        embedding = nn.Embedding(VOCABULARY, self.width, self.choose.choice((None, 0))) if ids else None
        waiting = [feature for feature in self.features if feature != "embedding"]
        summaries = [feature for feature in waiting if feature in _SUMMARIES and self.choose.random() < 0.5]
        waiting = [feature for feature in waiting if feature not in summaries]
        while waiting:
            part = self._part(waiting)
            self.parts.append(part)
            self.shortest = part.steps(self.shortest)
        self.heads = [_SUMMARIES[feature](self.choose, self.place) for feature in summaries]
        if not self.heads:
            self.heads.append(nn.Linear(self.width, 3))
        if len(self.heads) == 1 and self.choose.random() < 0.5:
            self.heads.append(nn.Linear(self.width, 2))
        kind = ComposedWithLengths if self.lengths else ComposedOfSequences
        model = kind(embedding, self.parts, self.heads, self.time, self.width).eval()
        yaml = configuration(self.width, ids=ids, time=self.time, lengths=self.lengths)
        return ComposedModel(seed, self.features, model, yaml)

    def _part(self, waiting: list[str]) -> Part:
        """Take the next feature, and for a join the one that follows it."""
        feature = waiting.pop(0)
        if feature in _SUMMARIES:
            return _SUMMARIES[feature](self.choose, self.place)
        if feature not in _JOINS:
            return _PARTS[feature](self.choose, self.place)
        return _JOINS[feature](self.choose, self.place, self._inner(waiting))

    def _inner(self, waiting: list[str]) -> Part:
        if waiting:
            rest = waiting.copy()
            part = self._part(rest)
            if part.keeps_time:
                waiting[:] = rest
                return part
        return Feedforward(self.choose, self.place)


def _is_sound(model: Composed) -> bool:
    """Whether the model runs on one request of each length, and amplifies no rounding error."""
    exact = copy.deepcopy(model).double()
    for item in requests(model, list(range(1, LONGEST + 1)), seed=0):
        try:
            ours = alone(model, item)
            theirs = alone(exact, item.double() if item.is_floating_point() else item)
        except (RuntimeError, IndexError):
            return False
        for single, double in zip(ours, theirs, strict=True):
            if not torch.allclose(single.double(), double, _ROUNDING, _ROUNDING):  # false for a NaN too
                return False
    return True
