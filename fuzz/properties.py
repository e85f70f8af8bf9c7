"""Error of an input for which a property does not hold."""

from __future__ import annotations


class PropertyViolation(AssertionError):
    """A property that an input violates; `cause` is the exception behind it, where one was logged."""

    def __init__(self, what: str, cause: BaseException | None = None) -> None:
        super().__init__(what if cause is None else f"{what}: {type(cause).__name__}: {cause}"[:500])
        self.cause = cause


def require(holds: bool, what: str) -> None:
    """Raise an error unless a property holds.

    Raises:
        PropertyViolation: it does not.
    """
    if not holds:
        raise PropertyViolation(what)
