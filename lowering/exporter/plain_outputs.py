"""Outputs of forward() in containers that are known: tuples, lists and dicts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any


def plain_outputs(value: Any) -> Any:
    """Return what forward() returns with dataclasses, namespaces and mappings of its own classes as dicts."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain_outputs(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, SimpleNamespace):
        return plain_outputs(vars(value))
    if isinstance(value, Mapping):
        return {key: plain_outputs(own) for key, own in value.items()}
    if type(value) in (list, tuple):
        return type(value)(plain_outputs(own) for own in value)
    return value
