"""Objects that constructors take: the mappings in `model.args`.

A mapping has its keys as attributes too, as configuration objects have. One with `_target_` is made by a class of the
user's, as Hydra's `instantiate` makes it.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import Any

_TARGET, _POSITIONAL, _PARTIAL = "_target_", "_args_", "_partial_"


class ArgumentError(ValueError):
    """A value of `model.args` that cannot be made."""


class Options(dict[str, Any]):
    """A mapping whose values are attributes too, as those of an `argparse.Namespace`.

    >>> opt = as_argument({"hidden": 8, "net": {"layers": 2}})
    >>> opt.hidden, opt["hidden"], opt.net.layers, vars(opt)["hidden"]
    (8, 8, 2, 8)
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        """Take values as they are."""
        super().__init__(values)
        self.__dict__ = self

    def __getattr__(self, name: str) -> Any:
        """Refuse an attribute that is not there.

        Raises `AttributeError`: always; torch and Python ask for names that may be missing.
        """
        raise AttributeError(
            f"the options under neuron_lstm.model.args have no {name} (they have {', '.join(map(str, self))})"
        )

    def __deepcopy__(self, memo: Mapping[int, Any]) -> Options:
        """Return a copy with the same values."""
        return Options(self)


def as_argument(value: Any) -> Any:
    """Return a value of the YAML as the constructor takes it; mappings within it too.

    >>> as_argument({"_target_": "fractions.Fraction", "_args_": [1, 3]})
    Fraction(1, 3)
    >>> as_argument({"_target_": "torch.nn.LSTM", "_partial_": True}).func.__name__
    'LSTM'

    Raises `ArgumentError`: there is no such class, or it does not take these arguments.
    """
    if isinstance(value, list):
        return [as_argument(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    values = {name: as_argument(item) for name, item in value.items()}
    return _made(values) if _TARGET in values else Options(values)


def _made(values: dict[str, Any]) -> Any:
    path = values.pop(_TARGET)
    positional, partial = values.pop(_POSITIONAL, []), values.pop(_PARTIAL, False)
    target = _found(path)
    if partial:
        return functools.partial(target, *positional, **values)
    try:
        return target(*positional, **values)
    except Exception as error:
        given = ", ".join([*map(repr, positional), *(f"{name}={value!r}" for name, value in values.items())])
        raise ArgumentError(
            f"neuron_lstm.model.args: {path}({given}) fails: {type(error).__name__}: {error}"
        ) from error


def _found(path: Any) -> Any:
    module, _, name = str(path).rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ArgumentError(
            f"neuron_lstm.model.args: there is no {path} ({error}): {_TARGET} is a class with its module, as in "
            "embeddings.WordEmbeddings; its file is the model's, or one of --extra-files"
        ) from error
