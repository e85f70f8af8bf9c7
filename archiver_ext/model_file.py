"""The user's Python file, imported as on a serving host: it has an `nn.Module` class.

Or it has one function of tensors.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import torch

from ..lowering.exporter.model_attributes import module_file
from .errors import PackagingError
from .import_advice import import_advice
from .model_class import Tell, choose_class, tell_nothing


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
    file = module_file(module)
    return file is not None and Path(file).is_relative_to(directory)


def load_class(model_file: Path, name: str | None = None, tell: Tell = tell_nothing) -> type[torch.nn.Module]:
    """Find the `nn.Module` class of a Python file, or make one from the function that it defines.

    The file's imports must be `importable`. `tell` gets a sentence if the file leaves a choice.

    Raises:
        PackagingError: the file fails to import, or has no class of that name, or without a name none or several.
    """
    return choose_class(_import(model_file), model_file, name, tell)


def _import(model_file: Path) -> ModuleType:
    """Run the file under its name, so that other files of the archive can import it too."""
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
        raise PackagingError(
            f"{model_file.name} cannot be imported: {type(error).__name__}: {error}{import_advice(error)}"
        ) from error
    return module
