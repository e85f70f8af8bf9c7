"""Chain of errors that led to an error. Used only while packaging: this file is not carried in archives."""

from __future__ import annotations

from collections.abc import Iterator


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and the chain of errors that led to it, outermost first."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
