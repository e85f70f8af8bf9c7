"""The user's model: a Python file with an `nn.Module` class, and a state dict.

Or with one function of tensors.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ..backends.weights_error import WeightsError
from ..config.schema import ModelArguments
from .checkpoint import FoundWeights, find_weights
from .errors import PackagingError
from .import_advice import import_advice
from .model_class import Tell, choose_class
from .options import as_argument
from .served_method import serve_method
from .weight_check import check_dtypes, check_finite

_TUPLE = re.compile(r"(typing\.)?(Optional\[(typing\.)?)?[Tt]uple\b")
"""The beginning of an annotation such as `tuple[int, int]`."""


def _silent(_: str) -> None:
    """Report nothing."""


@contextmanager
def importable(directory: Path) -> Iterator[None]:
    """Let the files of `directory` be imported by name, as on a serving host.

    Afterwards they are removed from `sys.modules`. Nothing is written beside them (no `__pycache__`).
    """
    modules, path, bytecode = dict(sys.modules), list(sys.path), sys.dont_write_bytecode
    sys.path.insert(0, str(directory))
    sys.dont_write_bytecode = True
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:], sys.dont_write_bytecode = path, bytecode
        for name in set(sys.modules) - set(modules):
            if _lies_in(sys.modules[name], directory):
                del sys.modules[name]


def _lies_in(module: ModuleType, directory: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).is_relative_to(directory)


def load_class(model_file: Path, name: str | None = None, tell: Tell = _silent) -> type[torch.nn.Module]:
    """Find the `nn.Module` class of a Python file, or make one from the function that it defines.

    The file's imports must be `importable`. `tell` gets a sentence if the file leaves a choice.

    Raises:
        PackagingError: the file fails to import, or has no class of that name, or without a name none or several.
    """
    return choose_class(_import(model_file), model_file, name, tell)


def _import(model_file: Path) -> ModuleType:
    """Run the file under its own name, so that other files of the archive can import it too."""
    spec = importlib.util.spec_from_file_location(model_file.stem, model_file)
    if spec is None or spec.loader is None:
        raise PackagingError(f"--model-file {model_file.name} is not a Python file (its name must end in .py)")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(module.__name__, module)
    try:
        spec.loader.exec_module(module)
    except SystemExit as end:  # a script that runs to its end, or reads a command line
        raise PackagingError(
            f"{model_file.name} ends Python while it is imported (sys.exit, code {end.code}): put what only a script "
            f"does under `if __name__ == '__main__':`"
        ) from end
    except Exception as error:
        raise PackagingError(f"{model_file.name} cannot be imported: {_reason(error)}{import_advice(error)}") from error
    return module


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def load_model(
    model_file: Path, serialized_file: Path | None, config: ModelArguments, tell: Tell = _silent
) -> torch.nn.Module:
    """Load the user's model with its weights, in eval mode, on the CPU.

    Raises:
        PackagingError: the files and arguments make no such model; the message gives the reason and the remedy.
    """
    model = build_model(model_file, config, tell)
    load_state_dict(model, serialized_file, tell)
    return model


def build_model(model_file: Path, config: ModelArguments, tell: Tell = _silent) -> torch.nn.Module:
    """Make the user's model, in eval mode, freshly initialised; its forward() is the method to serve.

    Raises:
        PackagingError: the file and the arguments make no such model.
    """
    return construct(
        load_class(model_file, config.class_name, tell), config.args, config.method, batched=config.batched
    )


def construct(
    model_class: type[torch.nn.Module], args: Mapping[str, Any], method: str | None = None, *, batched: bool = True
) -> torch.nn.Module:
    """Call the class with the keyword arguments of `neuron_lstm.model.args`.

    Raises:
        PackagingError: they do not fit the class's signature, its constructor fails, or it has no such method.
    """
    given = _bound(model_class, args)
    try:
        model = model_class(**given)
        model.eval()  # returns None where the user's own train() returns nothing
    except (Exception, SystemExit) as error:
        called = f"{model_class.__name__}({', '.join(f'{name}={value!r}' for name, value in given.items())})"
        raise PackagingError(f"{called} fails: {_reason(error)}") from error
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
            f"the class takes {model_class.__name__}{signature}"
        ) from error
    tuples = {name for name, parameter in signature.parameters.items() if _takes_tuple(parameter)}
    values = {name: as_argument(value) for name, value in args.items()}
    return {name: tuple(v) if name in tuples and isinstance(v, list) else v for name, v in values.items()}


def _takes_tuple(parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return isinstance(parameter.default, tuple) or _TUPLE.match(text) is not None


def load_state_dict(model: torch.nn.Module, serialized_file: Path | None, tell: Tell = _silent) -> FoundWeights | None:
    """Load the weights of a file into the model, and return them; None if there are none to load.

    `tell` gets a sentence if the file holds more than a state dict with the model's own names.

    Raises:
        PackagingError: no file for a model that has weights, a file that holds no state dict or another model's, or
            weights in another precision, or that are NaN or infinite.
    """
    expected = model.state_dict()
    if serialized_file is None:
        if expected:
            raise PackagingError(
                f"{type(model).__name__} has {len(expected)} weights, but no --serialized-file is given: "
                f"save it with torch.save(model.state_dict(), 'weights.pt') and give that file"
            )
        check_finite(model, "the model")
        return None
    found = _found(serialized_file, expected)
    _check_fit(type(model).__name__, expected, found, serialized_file)
    if not found.is_whole_file:
        tell(found.describe(serialized_file))
    check_dtypes(expected, found.weights, serialized_file.name)
    model.load_state_dict(dict(found.weights))
    check_finite(model, serialized_file.name)
    return found


def _found(serialized_file: Path, expected: Mapping[str, torch.Tensor]) -> FoundWeights:
    try:
        return find_weights(serialized_file, expected)
    except (WeightsError, PackagingError) as error:
        raise PackagingError(f"--serialized-file {error}") from error


def _check_fit(model: str, expected: Mapping[str, torch.Tensor], found: FoundWeights, file: Path) -> None:
    given = found.weights
    problems = [
        *(f"missing: {name} {list(expected[name].shape)}" for name in expected if name not in given),
        *(f"not in the model: {name} {list(given[name].shape)}" for name in given if name not in expected),
        *(
            f"{name}: the model has {list(expected[name].shape)}, the file {list(given[name].shape)}"
            for name in expected
            if name in given and expected[name].shape != given[name].shape
        ),
    ]
    if problems:
        lines = "\n  ".join(problems)
        raise PackagingError(
            f"{file.name}{found.key} does not hold the weights of {model} as built with neuron_lstm.model.args:"
            f"\n  {lines}"
        )
