"""Results of an example: differences from eager mode, and calls that were refused as documented."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class Engine:
    """An engine for an example, with its tolerance."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of its compiler, by the keywords of `tracing.trace`."""
    tolerance: float = 1e-5
    """The tolerance, absolute and relative to the eager answer."""


@dataclass
class Shown:
    """Results that an example records as it runs."""

    engine: Engine
    max_error: float = 0.0
    """The largest difference from eager mode, in the unit of the answers."""
    worst: float = 0.0
    """The largest difference as a multiple of the tolerance: up to 1 is accepted."""
    refused: list[str] = field(default_factory=list)
    """The messages of the refused calls, in the engine's own words."""
    latency_us: float | None = None
    """Microseconds of one call on the device, by the compiler's own count; None if it has none."""

    def compare(self, answer: torch.Tensor, expected: torch.Tensor) -> None:
        """Compare an answer with that of eager mode.

        Raises:
            AssertionError: the answer has another shape, or differs by more than the tolerance.
        """
        if answer.shape != expected.shape:
            raise AssertionError(f"an answer of {list(answer.shape)}, eager gives {list(expected.shape)}")
        difference = (answer - expected).abs()
        allowed = self.engine.tolerance * (1 + expected.abs())
        largest, worst = difference.max().item(), (difference / allowed).max().item()
        if not worst <= 1:  # NaN is a disagreement too
            raise AssertionError(f"differs from eager by {largest:.2e}, allowed is {self.engine.tolerance:g}")
        self.max_error, self.worst = max(self.max_error, largest), max(self.worst, worst)

    def refuses(self, error: type[Exception], call: Callable[[], object]) -> None:
        """Check that a call raises the documented error.

        Raises:
            AssertionError: the call raises no error.
        """
        try:
            call()
        except error as raised:
            self.refused.append(str(raised))
        else:
            raise AssertionError(f"nothing was raised where {error.__name__} is documented")
