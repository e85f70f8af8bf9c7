"""What an example shows: how far its answers are from eager's, and which calls it saw refused as documented."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class Engine:
    """Where an example runs, and how close it must come."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """For its compiler, by the keywords of `tracing.trace`."""
    tolerance: float = 1e-5
    """Absolute, and relative to eager's answer."""


@dataclass
class Shown:
    """Filled by an example as it runs."""

    engine: Engine
    max_error: float = 0.0
    """The largest difference from eager, in the unit of the answers."""
    worst: float = 0.0
    """The largest difference as a multiple of what the tolerance allows: up to 1 holds."""
    refused: list[str] = field(default_factory=list)
    """What was refused, in the engine's own words."""
    latency_us: float | None = None
    """One call on the device by the compiler's own count, where it has one."""

    def compare(self, answer: torch.Tensor, expected: torch.Tensor) -> None:
        """Hold an answer against eager's.

        Raises:
            AssertionError: it has another shape, or differs by more than the tolerance.
        """
        if answer.shape != expected.shape:
            raise AssertionError(f"an answer of {list(answer.shape)}, eager gives {list(expected.shape)}")
        difference = (answer - expected).abs()
        allowed = self.engine.tolerance * (1 + expected.abs())
        largest, worst = difference.max().item(), (difference / allowed).max().item()
        if not worst <= 1:  # NaN is no agreement either
            raise AssertionError(f"differs from eager by {largest:.2e}, allowed is {self.engine.tolerance:g}")
        self.max_error, self.worst = max(self.max_error, largest), max(self.worst, worst)

    def refuses(self, error: type[Exception], call: Callable[[], object]) -> None:
        """See that a call raises what is documented.

        Raises:
            AssertionError: it raises nothing.
        """
        try:
            call()
        except error as raised:
            self.refused.append(str(raised))
        else:
            raise AssertionError(f"nothing was raised where {error.__name__} is documented")
