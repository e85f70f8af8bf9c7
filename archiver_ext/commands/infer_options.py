"""Inference of the values that a constructor reads from a configuration object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..options import Options, as_argument, nested

_TRIED = 4
"""A size that most constructors accept: even, and small."""
_MOST_VALUES = 100


class _NoValue(AttributeError, KeyError):
    """A value that a configuration object lacks, with its name after that of the argument."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.missing = name


def options_read(model_class: type[nn.Module], given: Mapping[str, Any], required: Sequence[str]) -> list[str]:
    """Return the names such as `opt.hidden` of the values that a constructor needs in its arguments.

    `given` are known arguments, with names such as `opt.hidden` too; `required` are the others that it needs. They are
    tried as configuration objects, all at once and one at a time.
    """
    found: dict[str, None] = {}
    for probed in (tuple(required), *((name,) for name in required)):
        for _ in range(_MOST_VALUES):
            known = {**given, **dict.fromkeys(found, _TRIED)}
            objects = {*probed, *(name.split(".")[0] for name in known)}
            numbers = {name: _TRIED for name in required if name not in objects}
            missing = _missing_value(model_class, {**numbers, **known}, probed)
            if missing is None or missing in found:
                break
            found[missing] = None
    return list(found)


def _missing_value(model_class: type[nn.Module], known: Mapping[str, Any], probed: Sequence[str]) -> str | None:
    """Return the first value that the constructor misses in the probed arguments; None if it misses none."""
    values = nested(known)
    arguments = {name: as_argument(value) for name, value in values.items() if name not in probed}
    probes = {name: _probe(name, values.get(name)) for name in probed}
    try:
        with torch.device("meta"):
            model_class(**arguments, **probes)
    except _NoValue as error:
        return error.missing
    except Exception:  # noqa: BLE001 - the user's code, which may fail on any value
        return None
    return None


def _probe(argument: str, values: Any) -> Options:
    """Return options that report which value they lack."""

    class Probe(Options):
        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name) if name.startswith("__") else _NoValue(f"{argument}.{name}")

        def __missing__(self, name: str) -> Any:
            raise _NoValue(f"{argument}.{name}")

    return Probe(values if isinstance(values, Mapping) else {})
