"""Serve LSTM and GRU models over sequences of every length with TorchServe.

The package is made of the folders beside it; ARCHITECTURE.md says which line of code lives where. It imports
nothing before it is asked for, because a copy of it is carried in every archive and is imported by every TorchServe
worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .inference.open_archive import open_archive
    from .training import lower

__all__ = ["lower", "open_archive"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "lower":
        from .training import lower

        return lower
    if name == "open_archive":
        from .inference.open_archive import open_archive

        return open_archive
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
