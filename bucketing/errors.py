"""What the core refuses. Each error carries its facts, so whoever answers the request can word them."""

from __future__ import annotations


class SequenceTooLong(ValueError):
    """A sequence that no bucket holds."""

    def __init__(self, length: int, available: tuple[int, ...]) -> None:
        self.length = length
        self.available = available
        super().__init__(
            f"a sequence of {length} timesteps fits no bucket: the longest holds {available[-1]} "
            f"(buckets: {', '.join(map(str, available))})"
        )


class LengthNotAccepted(ValueError):
    """A length that is no bucket's own, for a model that must not be padded."""

    def __init__(self, length: int, available: tuple[int, ...]) -> None:
        self.length = length
        self.available = available
        super().__init__(
            f"a sequence of {length} timesteps is not accepted: padding would change this model's answer, so only "
            f"lengths {', '.join(map(str, available))} are served"
        )


class InvariantError(RuntimeError):
    """Something that cannot happen has happened. Nobody's request is at fault."""

    def __init__(self, what: str) -> None:
        super().__init__(f"this is a bug, please report it: {what}")
