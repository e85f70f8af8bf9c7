"""A simulated machine whose cores other work takes at times; programs on it wait as Linux says."""

from __future__ import annotations

from collections.abc import Callable

from torchserve_neuron_lstm.handlers.runtime.measurement import Meters

SYNCHRONIZING = 20.0
"""Ratio of a call's time while one of its threads has no core: the others wait for it at every step."""


class BusyMachine:
    """Simulated seconds, which pass only during calls."""

    def __init__(self, cores: int = 2, taken: Callable[[float], int] = lambda now: 0) -> None:
        self.cores, self.taken = cores, taken
        """Cores that other work has at a time in seconds."""
        self.now = self.waited = 0.0
        self.ran: list[str] = []

    @property
    def meters(self) -> Meters:
        """The readings of a process on this machine."""
        return Meters(lambda: self.now, lambda: self.waited)

    def costing(self, name: str, *milliseconds: float, threads: int = 2) -> Callable[[], None]:
        """A call that takes each of the times in turn, and then the last one; longer without its cores."""
        left = list(milliseconds)

        def call() -> None:
            self.ran.append(name)
            own = left.pop(0) if len(left) > 1 else left[0]
            without = max(0, threads - (self.cores - self.taken(self.now)))
            taken = own * (SYNCHRONIZING if without else 1.0)
            self.now += taken / 1000
            self.waited += taken * without

        return call
