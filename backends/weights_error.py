"""Error of files of weights."""

from __future__ import annotations


class WeightsError(RuntimeError):
    """A weights file that cannot be used. The message says why, and what to save instead."""
