"""Random models of random features, as a strategy of hypothesis.

A seed is drawn into 3 to 8 features and their order, a layout, and a part for each feature. A join takes the next part
as its inner one if that keeps the number of timesteps. A summary is an output in every second model; otherwise it is
added to each timestep. The input is x[B, T, F], or ids if there is an embedding. Weights are torch's defaults.

The model must run in eager mode on every number of timesteps from 1 to 16, with finite outputs, and in double precision
with the same outputs up to 1e-6: a model that amplifies rounding errors has no right answer to 1e-5. Otherwise all but
the features is drawn again. Nothing depends on what lowering accepts.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from . import layers, sequence_layers
from .layers import Feedforward, Part, Place
from .sequence_layers import Join, Summary

VOCABULARY = 11
LONGEST = 16
"""Timesteps of the longest request."""
PARTS: dict[str, type[Part]] = {
    "convolution": layers.Convolution,
    "stride": layers.StridedConvolution,
    "valid convolution": layers.ValidConvolution,
    "pooling": layers.Pooling,
    "upsampling": layers.Upsampling,
    "norm": layers.Norm,
    "attention": sequence_layers.Attention,
    "recurrence": sequence_layers.Recurrence,
    "cell loop": sequence_layers.CellLoop,
    "skip": sequence_layers.Skip,
    "concatenation": sequence_layers.Concatenation,
    "flip": sequence_layers.Flip,
    "elementwise": layers.Elementwise,
    "einsum": layers.Einsum,
    "transpose": layers.Transpose,
    "last step": sequence_layers.LastStep,
    "reduction": sequence_layers.Reduction,
}
"""In the order in which they are drawn: another one would change every model."""
FEATURES = ("embedding", *PARTS)
_ATTEMPTS = 100
_ROUNDING = 1e-6


class Composed(nn.Module):
    """Parts one after the other, then one or two outputs: of each timestep, or of the sequence."""

    def __init__(
        self, embedding: nn.Embedding | None, parts: Sequence[Part], heads: Sequence[nn.Module], place: Place
    ) -> None:
        super().__init__()
        self.time, self.width = place.time, place.width
        self.embedding = embedding
        self.parts = nn.ModuleList(parts)
        self.heads = nn.ModuleList(heads)

    def answer(self, x: Tensor, lengths: Tensor | None) -> Tensor | tuple[Tensor, ...]:
        if self.embedding is not None:
            x = self.embedding(x)
        for part in self.parts:
            x, lengths = part(x, lengths)
        outputs = [head.vector(x, lengths) if isinstance(head, Summary) else head(x) for head in self.heads]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


class ComposedOfSequences(Composed):
    """A composed model whose forward takes no lengths."""

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        return self.answer(x, None)


class ComposedWithLengths(Composed):
    """A composed model whose forward takes lengths."""

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor | tuple[Tensor, ...]:
        return self.answer(x, lengths)


@dataclass(frozen=True)
class ComposedModel:
    """A model that a seed stands for, in eval mode, and its configuration."""

    seed: int
    features: tuple[str, ...]
    model: Composed
    yaml: str


def composed_models(first: int, end: int) -> st.SearchStrategy[ComposedModel]:
    """Return a strategy of the models of a range of seeds: each is drawn once in as many examples."""
    return st.integers(first, end - 1).map(compose)


def compose(seed: int) -> ComposedModel:
    """Make the model of a seed, always the same; raises `RuntimeError` if no drawn one runs on every request."""
    choose = random.Random(seed)
    features = tuple(choose.sample(FEATURES, choose.randint(3, 8)))
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


def alone(model: Composed, item: Tensor) -> list[Tensor]:
    """Return the outputs for one request, x[T, F] or [T], in eager mode, without a batch dimension."""
    batch_dim = 1 - model.time
    lengths = torch.tensor([item.size(0)]) if isinstance(model, ComposedWithLengths) else None
    with torch.no_grad():
        outputs = model.answer(item.unsqueeze(batch_dim), lengths)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return [output.squeeze(batch_dim) if output.dim() == 3 else output.squeeze(0) for output in outputs]


def configuration(place: Place, *, ids: bool) -> str:
    """Return the YAML of a model with one input."""
    axes = "batch, time" if place.time == 1 else "time, batch"
    spec = f"int64, shape: [{axes}]" if ids else f"float32, shape: [{axes}, {place.width}]"
    return (
        f"neuron_lstm:\n  inputs: {{x: {{dtype: {spec}}}}}\n{'  lengths: lengths' if place.lengths else ''}\n"
        f"  buckets: {{batch: [1, 8], length: [4, {LONGEST}]}}\n"
    )


class _Composition:
    """Parts that are drawn one after the other, each for the sequence that the parts before it leave."""

    def __init__(self, choose: random.Random, features: tuple[str, ...]) -> None:
        self.choose, self.features = choose, features
        time, lengths = choose.choice((0, 1)), choose.random() < 0.5
        self.place = Place(time, choose.choice((4, 6)), 1, lengths)

    def composed(self, seed: int) -> ComposedModel:
        """Draw all parts and the outputs."""
        choose, width, ids = self.choose, self.place.width, "embedding" in self.features
        embedding = nn.Embedding(VOCABULARY, width, choose.choice((None, 0))) if ids else None
        waiting = [feature for feature in self.features if feature != "embedding"]
        summaries = [feature for feature in waiting if issubclass(PARTS[feature], Summary) and choose.random() < 0.5]
        waiting = [feature for feature in waiting if feature not in summaries]
        parts: list[Part] = []
        while waiting:
            parts.append(self._part(waiting))
            self.place = replace(self.place, shortest=parts[-1].steps(self.place.shortest))
        heads: list[nn.Module] = [PARTS[feature](choose, self.place) for feature in summaries]
        if not heads:
            heads.append(nn.Linear(width, 3))
        if len(heads) == 1 and choose.random() < 0.5:
            heads.append(nn.Linear(width, 2))
        kind = ComposedWithLengths if self.place.lengths else ComposedOfSequences
        model = kind(embedding, parts, heads, self.place).eval()
        return ComposedModel(seed, self.features, model, configuration(self.place, ids=ids))

    def _part(self, waiting: list[str]) -> Part:
        """Take the next feature, and for a join the one that follows it."""
        kind = PARTS[waiting.pop(0)]
        if issubclass(kind, Join):
            return kind(self.choose, self.place, self._inner(waiting))
        return kind(self.choose, self.place)

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
        pairs = zip(ours, theirs, strict=True)
        if not all(torch.allclose(single.double(), double, _ROUNDING, _ROUNDING) for single, double in pairs):
            return False  # for a NaN too
    return True
