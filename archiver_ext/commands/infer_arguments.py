"""Inference of the sizes that a model's class is made with, from the shapes of its weights."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...handlers.runtime.constructor_arguments import ArgumentError, Options, as_argument
from ..checkpoint import Weights, choose_weights, read_state_dicts
from ..errors import PackagingError, refusing
from .infer_inputs import annotation_name

_MOST_SECONDS = 20.0
_COUNTS = (1, 2, 3, 4, 5, 6, 8)
_PARTS = (1, 2, 3, 4)  # an LSTM's weights have four rows for each hidden unit, a GRU's have three

Arguments = dict[str, Any]


def infer_arguments(model_class: type[nn.Module], given: Mapping[str, Any], file: Path) -> Arguments:
    """Return `given` with the whole numbers and switches that give the class the weights of the file.

    Values that the class reads from a configuration object have names such as `opt.hidden`. Only arguments that show in
    the weights are found; the others keep their defaults. Without a fit, `given`.

    Raises `PackagingError`: a required argument is no number or switch, or does not show in the weights.
    Raises `WeightsError`: the file holds no weights.
    """
    search = _Search(model_class, given, file)
    found = search.best()
    if not search.fits(found):
        found = dict(given)
    if hidden := [name for name in search.required if name not in found or search.is_free(name, found)]:
        raise PackagingError(
            f"{model_class.__name__} needs {', '.join(hidden)}, which the weights of {file.name} do not determine: "
            f"give --args {' '.join(f'{name}=VALUE' for name in hidden)}; the class takes "
            f"{model_class.__name__}{inspect.signature(model_class)}"
        )
    return found


def required_arguments(model_class: type[nn.Module], given: Mapping[str, Any]) -> list[str]:
    """The names of the arguments without which the class cannot be made, those given left out.

    An argument that is a configuration object has the names of the values that are read from it.
    """
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(model_class).parameters.items()
    needed = [name for name, argument in parameters if argument.default is argument.empty and argument.kind in by_name]
    missing = [name for name in needed if name not in given]
    read = _options_read(model_class, given, missing)
    objects = {name.split(".")[0] for name in (*read, *given) if "." in name}
    return [*(name for name in missing if name not in objects), *read]


class _Search:
    """One argument after the other is set to the value with which most sizes equal those of the file."""

    def __init__(self, model_class: type[nn.Module], given: Mapping[str, Any], file: Path) -> None:
        self._class, self._given, self._file = model_class, dict(given), file
        parameters = inspect.signature(model_class).parameters
        self.required = required_arguments(model_class, given)
        objects = {name.split(".")[0] for name in (*self.required, *given) if "." in name}
        open_ones = [one for name, one in parameters.items() if name not in (*given, *objects)]
        self._defaults = {one.name: one.default for one in open_ones if one.default is not one.empty}
        self._until = time.monotonic() + _MOST_SECONDS
        self._dicts = read_state_dicts(file)
        sizes = _sizes(max(self._dicts.values(), key=len))  # an optimizer's are smaller
        self._values = {one.name: values for one in open_ones if (values := _candidates(one, sizes))}
        self._values |= {name: sizes for name in self.required if "." in name}

    def best(self) -> Arguments:
        """The arguments of the first start that ends in a fit, or else of the last."""
        found = dict(self._given)
        for start in self._starts():
            found = self._climb(start)
            if self.fits(found) or time.monotonic() > self._until:
                break
        return found

    def fits(self, arguments: Arguments) -> bool:
        """Whether the class has exactly the weights of the file."""
        return self._score(arguments) == inf

    def is_free(self, name: str, arguments: Arguments) -> bool:
        """Whether other values of an argument that was not given fit too."""
        others = [value for value in self._values[name] if value != arguments[name]]
        return any(self.fits({**arguments, name: value}) for value in others)

    def _starts(self) -> Iterator[Arguments]:
        numbers = [name for name in self.required if name in self._values]
        if len(numbers) < len(self.required):
            return  # an argument of another kind
        for value in dict.fromkeys(value for name in numbers for value in self._values[name]):
            yield {**self._given, **dict.fromkeys(numbers, value)}
        if not numbers:
            yield dict(self._given)

    def _climb(self, arguments: Arguments) -> Arguments:
        """Change one argument at a time for as long as that raises the score."""
        score = self._score(arguments)
        better = True
        while better and time.monotonic() < self._until:
            better = False
            for name, values in self._values.items():
                for value in values:
                    trial = {**arguments, name: value}
                    if arguments.get(name, self._defaults.get(name)) != value and (now := self._score(trial)) > score:
                        arguments, score, better = trial, now, True
        return arguments

    def _score(self, arguments: Arguments) -> float:
        """The number of equal sizes, less the names that only one side has; infinite if all are equal."""
        made = self._made(arguments)
        if made is None:
            return -inf
        weights = choose_weights(self._dicts, self._file, made).weights
        if {name: one.shape for name, one in weights.items()} == {name: one.shape for name, one in made.items()}:
            return inf
        shared = made.keys() & weights.keys()
        equal = sum(a == b for name in shared for a, b in zip(made[name].shape, weights[name].shape, strict=False))
        return equal - len(made.keys() ^ weights.keys())

    def _made(self, arguments: Arguments) -> Weights | None:
        try:
            with torch.device("meta"):
                return self._class(**as_argument(nested(arguments))).state_dict()
        except Exception:  # noqa: BLE001 - the user's code may raise anything, and other values may fit
            return None


def _sizes(weights: Weights) -> list[int]:
    """Sizes and counts that an argument may have: those of the weights, and parts of these."""
    whole = [size for tensor in weights.values() for size in tensor.shape]
    parts = [size // part for part in _PARTS for size in whole if size % part == 0]
    return list(dict.fromkeys((*parts, *_COUNTS)))


def _candidates(parameter: inspect.Parameter, sizes: list[int]) -> list[Any]:
    """Values for an argument that is a switch or a whole number; none for any other."""
    default, kind = parameter.default, annotation_name(parameter)
    if isinstance(default, bool) or kind == "bool":
        return [False, True]
    by_name = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    untyped = parameter.annotation is parameter.empty or kind in ("Any", "typing.Any")
    bare = by_name and default is parameter.empty and untyped
    return sizes if bare or type(default) is int or kind == "int" else []


_TRIED = 4
"""A size that most constructors accept: even, and small."""
_MOST_VALUES = 100


class _NoValue(AttributeError, KeyError):
    """A value that a configuration object lacks; its only argument is the name, after that of the object."""


def _options_read(model_class: type[nn.Module], given: Mapping[str, Any], required: Sequence[str]) -> list[str]:
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
    with refusing(ArgumentError):
        arguments = {name: as_argument(value) for name, value in values.items() if name not in probed}
    probes = {name: _probe(name, values.get(name)) for name in probed}
    try:
        with torch.device("meta"):
            model_class(**arguments, **probes)
    except _NoValue as error:
        return str(error.args[0])
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


def nested(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of which names such as `opt.hidden` are values of a mapping `opt`.

    >>> nested({"opt.hidden": 8, "opt.net.layers": 2, "classes": 3})
    {'opt': {'hidden': 8, 'net': {'layers': 2}}, 'classes': 3}

    Raises `PackagingError`: an argument is given both as a value and as a mapping.
    """
    found: dict[str, Any] = {}
    for name, value in arguments.items():
        *path, last = name.split(".")
        owner = found
        for part in path:
            owner = owner.setdefault(part, {})
            if not isinstance(owner, dict):
                raise PackagingError(f"--args {name}: {part} is given as {owner!r} too: give one of them")
        owner[last] = value
    return found
