"""The user's model, made with the arguments of the YAML, with or without its weights."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..config.diagnostics import truncate
from ..config.schema import ModelArguments
from ..handlers.runtime.constructor_arguments import ArgumentError, as_argument
from ..handlers.runtime.own_model import run_method
from .errors import PackagingError, refusing
from .model_class import Tell, load_class, tell_nothing

_TUPLE = re.compile(r"(typing\.)?(Optional\[(typing\.)?)?[Tt]uple\b")
"""The beginning of an annotation such as `tuple[int, int]`."""


def build_model(model_file: Path, config: ModelArguments, tell: Tell = tell_nothing) -> torch.nn.Module:
    """Make the user's model, in eval mode, freshly initialised; its forward() is the method to serve.

    Raises `PackagingError`: the file and the arguments make no such model.
    """
    model_class = load_class(model_file, config.class_name, tell)
    return construct(model_class, config.args, config.method, batched=config.batched)


def construct(
    model_class: type[torch.nn.Module], args: Mapping[str, Any], method: str | None = None, *, batched: bool = True
) -> torch.nn.Module:
    """Call the class with the keyword arguments of `neuron_lstm.model.args`.

    Raises `PackagingError`: they do not fit the class's signature, its constructor fails, or it has no such method.
    """
    given = _bound(model_class, args)
    try:
        model = model_class(**given)
        model.eval()  # returns None where the user's own train() returns nothing
    except (Exception, SystemExit) as error:
        shown = ", ".join(f"{name}={truncate(repr(value), 200)}" for name, value in given.items())
        raise PackagingError(f"{model_class.__name__}({shown}) fails: {type(error).__name__}: {error}") from error
    serve_method(model, method or "forward", batched=batched)
    return model


def _bound(model_class: type[torch.nn.Module], args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as the class takes them: YAML has lists for tuples, and mappings for configuration objects."""
    signature = inspect.signature(model_class)
    try:
        signature.bind(**args)
    except TypeError as error:
        raise PackagingError(
            f"neuron_lstm.model.args does not fit the model: {error}. Given: {', '.join(args) or 'nothing'}; "
            f"the class takes {model_class.__name__}{signature}. Write them as `model: {{args: {{NAME: VALUE}}}}` "
            "under `neuron_lstm:`; `neuron-lstm init` with --serialized-file finds sizes"
        ) from error
    tuples = taken_as_tuples(model_class, args)
    with refusing(ArgumentError):
        values = {name: as_argument(value) for name, value in args.items()}
    return {name: tuple(value) if name in tuples else value for name, value in values.items()}


def taken_as_tuples(model_class: type[torch.nn.Module], args: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the arguments that are lists in YAML, and that the class takes as tuples."""
    parameters = inspect.signature(model_class).parameters
    lists = (name for name, value in args.items() if isinstance(value, list) and name in parameters)
    return tuple(name for name in lists if _takes_tuple(parameters[name]))


def _takes_tuple(parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return isinstance(parameter.default, tuple) or _TUPLE.match(text) is not None


def serve_method(model: torch.nn.Module, name: str, *, batched: bool = True) -> None:
    """Let a call of the model run its method of this name, as `run_method` does.

    Raises `PackagingError`: the class has no such method.
    """
    method = getattr(model, name, None)
    if not callable(method) or isinstance(method, torch.nn.Module):
        model_class = type(model)
        public = [own for own in dir(model_class) if not own.startswith("_")]
        known = [own for own in public if callable(getattr(model_class, own)) and not hasattr(torch.nn.Module, own)]
        names = ", ".join(("forward", *known))
        raise PackagingError(f"neuron_lstm.model.method: {model_class.__name__} has no method {name}: it has {names}")
    if name == "forward" and batched:
        return
    run_method(model, method, batched=batched)
