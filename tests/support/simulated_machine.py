"""A machine whose time passes only during calls, for tests of measurements."""

from collections.abc import Callable


class Machine:
    """Simulated seconds; other work makes a call longer by a ratio, which may depend on its name and the time."""

    def __init__(self, slowdown: Callable[[str, float], float] = lambda name, now: 1.0) -> None:
        self.slowdown = slowdown
        self.now = 0.0
        self.ran: list[str] = []

    def __call__(self) -> float:
        return self.now

    def costing(self, name: str, *milliseconds: float) -> Callable[[], None]:
        """A call that takes each of the times in turn, and then the last one."""
        times = list(milliseconds)

        def call() -> None:
            self.ran.append(name)
            self.now += (times.pop(0) if len(times) > 1 else times[0]) * self.slowdown(name, self.now) / 1000

        return call
