"""The user's model: a Python file with one `nn.Module` class, and a state dict.

Or with one function of tensors.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch

from ..backends.weights import read_weights
from ..config.schema import ServingConfig
from ..handlers.runtime.user_code import load_bucket_selector
from ..lowering.program import LoweredModel
from .errors import PackagingError
from .import_advice import import_advice
from .weight_check import check_dtypes, check_finite

_SAVE_STATE_DICT = "save it with torch.save(model.state_dict(), 'weights.pt') and give that file"


@contextmanager
def importable(directory: Path) -> Iterator[None]:
    """Let the files of `directory` be imported by name, as on a serving host; forget them afterwards.

    Nothing is written beside them (no `__pycache__`).
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


def load_class(model_file: Path) -> type[torch.nn.Module]:
    """Find the `nn.Module` class of a Python file, or make one from the function that it defines.

    The file's imports must be `importable`.

    Raises:
        PackagingError: the file fails to import, or defines no such class or several.
    """
    module = _import(model_file)
    distinct = list(dict.fromkeys(_models_of(module)))
    if not distinct:
        return _class_of(_function_of(module, model_file))
    if len(distinct) > 1:
        raise PackagingError(_several(model_file, [model.__name__ for model in distinct]))
    return distinct[0]


def _models_of(module: ModuleType) -> Iterator[type[torch.nn.Module]]:
    """The classes that the module defines, without imported ones."""
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, torch.nn.Module) and value.__module__ == module.__name__:
            yield value


def _function_of(module: ModuleType, model_file: Path) -> FunctionType:
    """The only function that it defines whose name has no leading underscore.

    Raises:
        PackagingError: there is none, or there are several.
    """
    defined = (value for value in vars(module).values() if isinstance(value, FunctionType))
    found = [value for value in defined if value.__module__ == module.__name__ and not value.__name__.startswith("_")]
    if not found:
        raise PackagingError(
            f"{model_file.name} defines no torch.nn.Module class, nor a function: the model must be in this file"
        )
    if len(found) > 1:
        names = ", ".join(function.__name__ for function in found)
        raise PackagingError(
            f"{model_file.name} defines no torch.nn.Module class but {len(found)} functions ({names}), so the "
            f"model is ambiguous: begin the names of the others with an underscore"
        )
    return found[0]


def _class_of(function: FunctionType) -> type[torch.nn.Module]:
    """A model class without weights that computes the function, with its name and arguments."""
    members = {"__doc__": function.__doc__, "__module__": function.__module__, "forward": staticmethod(function)}
    return type(function.__name__, (torch.nn.Module,), members)


def _several(model_file: Path, names: list[str]) -> str:
    return (
        f"{model_file.name} defines {len(names)} torch.nn.Module classes ({', '.join(names)}), so the model is "
        f"ambiguous: keep only the model's class in this file, move the others to another file, import them from "
        f"there, and give that file with --extra-files"
    )


def _import(model_file: Path) -> ModuleType:
    """Run the file under its own name, so that other files of the archive can import it too."""
    spec = importlib.util.spec_from_file_location(model_file.stem, model_file)
    if spec is None or spec.loader is None:
        raise PackagingError(f"--model-file {model_file.name} is not a Python file (its name must end in .py)")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(module.__name__, module)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise PackagingError(f"{model_file.name} cannot be imported: {_reason(error)}{import_advice(error)}") from error
    return module


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def load_model(model_file: Path, serialized_file: Path | None, args: Mapping[str, Any]) -> torch.nn.Module:
    """Load the user's model with its weights, in eval mode, on the CPU.

    Raises:
        PackagingError: the files and arguments make no such model; the message gives the reason and the remedy.
    """
    return load_state_dict(construct(load_class(model_file), args), serialized_file)


def construct(model_class: type[torch.nn.Module], args: Mapping[str, Any]) -> torch.nn.Module:
    """Call the class with the keyword arguments of `neuron_lstm.model.args`.

    Raises:
        PackagingError: they do not fit the class's signature, or its constructor fails.
    """
    _check_arguments(model_class, args)
    try:
        model = model_class(**args)
    except Exception as error:
        called = f"{model_class.__name__}({', '.join(f'{name}={value!r}' for name, value in args.items())})"
        raise PackagingError(f"{called} fails: {_reason(error)}") from error
    model.eval()  # a train() of the user's own may return nothing
    return model


def _check_arguments(model_class: type[torch.nn.Module], args: Mapping[str, Any]) -> None:
    signature = inspect.signature(model_class)
    try:
        signature.bind(**args)
    except TypeError as error:
        raise PackagingError(
            f"neuron_lstm.model.args does not fit the model: {error}. Given: {', '.join(args) or 'nothing'}; "
            f"the class takes {model_class.__name__}{signature}"
        ) from error


def load_state_dict(model: torch.nn.Module, serialized_file: Path | None) -> torch.nn.Module:
    """Load the state dict into the model.

    Raises:
        PackagingError: no file for a model that has weights, a file that holds no state dict or another model's, or
            weights in another precision, or that are NaN or infinite.
    """
    expected = model.state_dict()
    if serialized_file is not None:
        given = _read(serialized_file)
        _check_fit(type(model).__name__, expected, given, serialized_file)
        check_dtypes(expected, given, serialized_file.name)
        model.load_state_dict(dict(given))
    elif expected:
        raise PackagingError(
            f"{type(model).__name__} has {len(expected)} weights, but no --serialized-file is given: {_SAVE_STATE_DICT}"
        )
    check_finite(model, "the model" if serialized_file is None else serialized_file.name)
    model.eval()
    return model


def _read(serialized_file: Path) -> Mapping[str, torch.Tensor]:
    if _is_torchscript(serialized_file):
        raise PackagingError(
            f"--serialized-file {serialized_file.name} is a TorchScript program, not a state dict: {_SAVE_STATE_DICT}"
        )
    try:
        return read_weights(serialized_file)
    except Exception as error:
        raise PackagingError(f"--serialized-file {serialized_file.name}: {error}") from error


def _is_torchscript(file: Path) -> bool:
    if not zipfile.is_zipfile(file):
        return False
    with zipfile.ZipFile(file) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def _check_fit(model: str, expected: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor], file: Path) -> None:
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
        if given and all(name.startswith("module.") for name in given):
            problems.append("all names begin with 'module.': saved from DataParallel; save model.module.state_dict()")
        lines = "\n  ".join(problems)
        raise PackagingError(
            f"{file.name} does not hold the weights of {model} as built with neuron_lstm.model.args:\n  {lines}"
        )


def check_codec(codec: str | None, directory: Path) -> None:
    """Refuse a codec `module:Class` that is not in the archive. Its module must be `importable`.

    Raises:
        PackagingError: no such file among the extra files, it fails to import, or defines no such class.
    """
    if codec is None:
        return
    name, _, class_name = codec.partition(":")
    file = _extra_file("codec", codec, directory)
    try:
        module = importlib.import_module(name)
    except Exception as error:
        raise PackagingError(f"neuron_lstm.codec: {file.name} cannot be imported: {_reason(error)}") from error
    if not isinstance(getattr(module, class_name, None), type):
        raise PackagingError(f"neuron_lstm.codec: {file.name} defines no class {class_name}")


def _extra_file(key: str, reference: str, directory: Path) -> Path:
    """The file of the module that a key of the YAML names, as in `module:Class`."""
    file = directory.joinpath(*reference.partition(":")[0].split(".")).with_suffix(".py")
    if not file.is_file():
        named = f"neuron_lstm.{key}: {reference}"
        raise PackagingError(f"{named}: there is no {file.name} in the archive; give it with --extra-files")
    return file


def with_bucket_selector(program: LoweredModel, config: ServingConfig) -> LoweredModel:
    """Restrict a program to whole sequences in the grid's shapes, if the user selects the buckets.

    Raises:
        PackagingError: each length has only one bucket, so there is nothing to select.
    """
    if config.buckets.kernel is None:
        return program
    if program.padding == "exact_lengths":
        raise PackagingError(
            "neuron_lstm.buckets.kernel: there is nothing to select, because this model is served at the exact bucket "
            f"lengths ({program.padding_reason}): leave kernel out"
        )
    reason = f"{config.buckets.kernel} selects a bucket for each whole sequence"
    return replace(program, chunked=None, chunking_reason=reason, any_shape=False)


def check_bucket_selector(config: ServingConfig, directory: Path) -> None:
    """Refuse a bucket selector that is not in the archive or does not work. Files must be `importable`.

    Raises:
        PackagingError: it is not among the extra files, or fails for some lengths, which are named.
    """
    reference = config.buckets.kernel
    if reference is None:
        return
    _extra_file("buckets.kernel", reference, directory)
    try:
        load_bucket_selector(reference, config.grid.lengths, directory)
    except RuntimeError as error:
        raise PackagingError(f"neuron_lstm.buckets.{error}") from error
