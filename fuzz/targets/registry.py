"""Targets by name, each imported when it is asked for: only then the fuzzer can watch its code."""

from __future__ import annotations

from importlib import import_module

from ..target import Target

SHARES = {"requests": 0.7, "manifests": 0.1, "records": 0.1, "tokens": 0.1}
"""Names of the targets, and the share of the time that each gets."""


def load_target(name: str) -> Target:
    """Import the target of a name of `SHARES`."""
    target: Target = import_module(f".{name}", __package__).TARGET
    return target
