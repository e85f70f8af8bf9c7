"""Choice of the model's class among those of the user's file."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType

import torch

from ..lowering.exporter.model_attributes import module_file
from .archive.carried_files import reachable
from .errors import PackagingError

Tell = Callable[[str], None]
"""A function that takes a sentence for the user."""

_Model = type[torch.nn.Module]
_HOW = "give its name as `model: {class: NAME}` under `neuron_lstm:` (`neuron-lstm init --class NAME` writes it)"


def tell_nothing(_: str) -> None:
    """Report nothing."""


def load_class(file: Path, name: str | None = None, tell: Tell = tell_nothing) -> _Model:
    """Return the `nn.Module` class of this name in a Python file, or without a name the only one that can be meant.

    The file's imports must be `importable`. Of several classes, one is taken if it uses all the others and none of them
    uses it; `tell` gets a sentence that says so. A file without classes may define one function of tensors.

    Raises `PackagingError`: the file fails to import, there is no such class, or several can be meant.
    """
    module = _import(file)
    defined = {model.__name__: model for model in dict.fromkeys(_models(module)) if model.__module__ == module.__name__}
    if name is not None:
        return _named(module, file, name, defined)
    if not defined:
        function = _function_of(module, file)
        members = {"__doc__": function.__doc__, "__module__": function.__module__, "forward": staticmethod(function)}
        return type(function.__name__, (torch.nn.Module,), members)
    if len(defined) == 1:
        return next(iter(defined.values()))
    served = {name: model.forward is not torch.nn.Module.forward for name, model in defined.items()}
    outermost = outermost_class(file.read_text(encoding="utf-8"), served)
    if outermost is None:
        raise PackagingError(
            f"{file.name} defines {len(defined)} torch.nn.Module classes ({', '.join(defined)}), so the model is "
            f"ambiguous: {_HOW}"
        )
    others = ", ".join(other for other in defined if other != outermost)
    tell(f"{file.name}: the model is the class {outermost}, which uses the others ({others})")
    return defined[outermost]


def _models(module: ModuleType) -> Iterator[_Model]:
    for value in vars(module).values():
        is_model = isinstance(value, type) and issubclass(value, torch.nn.Module)
        if is_model and value.__module__.partition(".")[0] != "torch":
            yield value


def _named(module: ModuleType, file: Path, name: str, defined: Mapping[str, _Model]) -> _Model:
    found = getattr(module, name, None)
    if isinstance(found, type) and issubclass(found, torch.nn.Module):
        return found
    known = dict.fromkeys((*defined, *(model.__name__ for model in _models(module))))
    wrong = f"{file.name} has no torch.nn.Module class {name}: it has {', '.join(known) or 'none'}"
    raise PackagingError(f"neuron_lstm.model.class: {wrong}")


def _function_of(module: ModuleType, file: Path) -> FunctionType:
    """The only function that it defines whose name has no leading underscore."""
    defined = (value for value in vars(module).values() if isinstance(value, FunctionType))
    found = [value for value in defined if value.__module__ == module.__name__ and not value.__name__.startswith("_")]
    if not found:
        imported = ", ".join(dict.fromkeys(model.__name__ for model in _models(module)))
        advice = f". It imports {imported}: {_HOW}" if imported else ": the model must be in this file"
        raise PackagingError(f"{file.name} defines no torch.nn.Module class, nor a function{advice}")
    if len(found) > 1:
        names = ", ".join(function.__name__ for function in found)
        raise PackagingError(
            f"{file.name} defines no torch.nn.Module class but {len(found)} functions ({names}), so the "
            f"model is ambiguous: begin the names of the others with an underscore"
        )
    return found[0]


def outermost_class(source: str, served: Mapping[str, bool]) -> str | None:
    r"""Return the class that uses all the others and is used by none of them; None if it is not certain.

    `served` tells for each class of the source whether it has a forward(). One that has is not used by being a base
    class alone: base and subclass can both be meant. A class is also used through functions and variables of the file.

    >>> outermost_class("class A: ...\nclass B:\n    def __init__(self): self.a = A()", {"A": True, "B": True})
    'B'
    >>> outermost_class("class A: ...\nclass B(A): ...", {"A": True, "B": True})
    """
    uses = {name: used for statement in ast.parse(source).body for name, used in _uses(statement, served)}
    reached = {name: reachable(uses.get(name, ()), lambda used: uses.get(used, ())) for name in served}
    whole = [name for name in served if reached[name] >= served.keys() - {name}]
    found = [name for name in whole if not any(name in reached[other] for other in served if other != name)]
    return found[0] if len(found) == 1 else None


def _uses(statement: ast.stmt, served: Mapping[str, bool]) -> Iterator[tuple[str, set[str]]]:
    """The names that a statement at the top of the file defines, each with the names that it reads."""
    if isinstance(statement, ast.ClassDef):
        bases = {name for base in statement.bases for name in _names([base]) if not served.get(name, False)}
        yield statement.name, bases | _names([*statement.body, *statement.keywords, *statement.decorator_list])
    elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        yield statement.name, _names([statement])
    elif isinstance(statement, ast.Assign | ast.AnnAssign) and (value := statement.value):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        yield from ((target.id, _names([value])) for target in targets if isinstance(target, ast.Name))


def _names(nodes: Iterable[ast.AST]) -> set[str]:
    walked = (inner for node in nodes for inner in ast.walk(node))
    return {node.id for node in walked if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


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
            file = module_file(sys.modules[name])
            if file is not None and Path(file).is_relative_to(directory):
                del sys.modules[name]


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
            f"{model_file.name} cannot be imported: {type(error).__name__}: {error}{_import_advice(error)}"
        ) from error
    return module


def _import_advice(error: BaseException) -> str:
    """Say how a failed import is made to work, in brackets; empty for other errors.

    >>> print(_import_advice(ModuleNotFoundError("No module named 'blocks'", name="blocks"))[:52])
     (if it is your file, give blocks.py with --extra-fi
    """
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        top = error.name.partition(".")[0]
        return (
            f" (if it is your file, give {top}.py with --extra-files. If it is your folder, put it into another one, "
            f"as in parts/{top}/, and give --extra-files parts: only the content of a folder gets into the archive. If "
            "it is a package, install it here)"
        )
    if isinstance(error, ImportError) and "attempted relative import" in str(error):
        return (
            " (the model's file is no part of a package in the archive. Write `from layers import Block` in place of "
            "`from .layers import Block`, and give layers.py with --extra-files. Or keep your package: give a folder "
            "that contains it with --extra-files, and as --model-file another file, with "
            "`from package.model import Net` and `class Model(Net): pass`)"
        )
    return ""
