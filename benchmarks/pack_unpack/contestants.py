"""Four ways to train the same parameters, and a check that their results are equal."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from torchserve_neuron_lstm import lower

from .experiment import Batch, Classifier, Pass
from .measured import COMPILED, MASKED, OURS, PACKED

Call = Callable[[], object]


class WrongAnswers(RuntimeError):
    """A contestant whose results differ from those of pack/unpack: its time means nothing."""


@dataclass(frozen=True)
class Contestant:
    """A view of the model, and whether it packs."""

    model: nn.Module
    packs: bool

    def loss(self, batch: Batch) -> Tensor:
        """Cross entropy."""
        return nn.functional.cross_entropy(self.model(batch.ids, batch.lengths, self.packs), batch.target)


def contestants(model: Classifier, compiles: bool) -> dict[str, Contestant]:
    """All contestants, on the same parameters."""
    ways = {PACKED: Contestant(model, True), MASKED: Contestant(model, False), OURS: Contestant(lower(model), True)}
    if compiles:
        ways[COMPILED] = Contestant(torch.compile(lower(model), dynamic=True), True)  # type: ignore[arg-type]  # of a module, torch.compile makes one
    return ways


def cannot_compile(device: torch.device) -> str | None:
    """Return the reason why the compiled line must be left out, or None."""
    if device.type == "cpu" and not any(map(shutil.which, ("g++", "clang++", "c++"))):
        return "there is no C++ compiler"
    return None


def calls(ways: Mapping[str, Contestant], batch: Batch, which: Pass) -> dict[str, Call]:
    """Return the timed call of each contestant."""
    run = _forward if which == "forward" else _forward_and_backward
    return {name: partial(run, way, batch) for name, way in ways.items()}


def _forward(way: Contestant, batch: Batch) -> None:
    with torch.no_grad():
        way.loss(batch)


def _forward_and_backward(way: Contestant, batch: Batch) -> None:
    way.model.zero_grad()
    way.loss(batch).backward()


def check(ways: Mapping[str, Contestant], batch: Batch) -> None:
    """Check that all contestants have the logits and the gradients of pack/unpack.

    Logits: |a - e| <= 1e-5 + 1e-5 |e|. Gradients of ours: within 1e-5 of their norms of the float64 gradients or, if
    pack/unpack itself is farther off, within twice its distance: float32 is not more exact in sums of 100,000 numbers.
    The others, another method and compiled code, are only checked to be of the same model.

    Raises:
        WrongAnswers: a contestant differs.
    """
    exact = _outcome(Contestant(deepcopy(ways[MASKED].model).double(), packs=False), batch)
    logits, gradients = _outcome(ways[PACKED], batch)
    errors = _errors(gradients, exact[1])
    names = [name for name, _ in ways[PACKED].model.named_parameters()]
    for way, contestant in ways.items():
        own_logits, own_gradients = _outcome(contestant, batch)
        if not torch.allclose(own_logits, logits, rtol=1e-5, atol=1e-5):
            raise WrongAnswers(f"{way}: logits differ by {float((own_logits - logits).abs().max()):.2g}")
        least = 1e-5 if way == OURS else 1e-3
        for name, error, reference in zip(names, _errors(own_gradients, exact[1]), errors, strict=True):
            limit = max(least, 2 * reference)
            if not error <= limit:
                raise WrongAnswers(f"{way}: the gradient of {name} is {error:.2g} of its norm off, not {limit:.2g}")


def _outcome(way: Contestant, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
    logits = way.model(batch.ids, batch.lengths, way.packs)
    loss = nn.functional.cross_entropy(logits, batch.target)
    return logits.detach(), torch.autograd.grad(loss, list(way.model.parameters()))


def _errors(gradients: Sequence[Tensor], exact: Sequence[Tensor]) -> list[float]:
    """The distance of each gradient from the exact one, as a part of the exact one's norm."""
    return [float((own - e).norm() / e.norm()) for own, e in zip(gradients, exact, strict=True)]
