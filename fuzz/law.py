"""Error of an input for which a law does not hold."""

from __future__ import annotations


class BrokenLaw(AssertionError):
    """A law that an input breaks; `cause` is the exception behind it, where one was logged."""

    def __init__(self, law: str, cause: BaseException | None = None) -> None:
        super().__init__(law if cause is None else f"{law}: {type(cause).__name__}: {cause}"[:500])
        self.cause = cause


def require(holds: bool, law: str) -> None:
    """Raise an error unless a law holds.

    Raises:
        BrokenLaw: it does not.
    """
    if not holds:
        raise BrokenLaw(law)
