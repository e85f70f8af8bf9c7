"""Choice of the model's class among those of the user's file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FunctionType, ModuleType

import torch

from ..config.strict import closest_key
from .errors import PackagingError
from .outermost_class import outermost_class

Tell = Callable[[str], None]
"""A function that takes a sentence for the user."""

_Model = type[torch.nn.Module]
_HOW = "give its name as `model: {class: NAME}` under `neuron_lstm:` (`neuron-lstm init --class NAME` writes it)"


def tell_nothing(_: str) -> None:
    """Report nothing."""


def choose_class(module: ModuleType, file: Path, name: str | None, tell: Tell) -> _Model:
    """Return the class of this name, or without a name the only one that can be meant.

    Of several classes, one is taken if it uses all the others and none of them uses it; `tell` gets a sentence that
    says so. A file without classes may define one function of tensors.

    Raises:
        PackagingError: there is no such class, or several can be meant.
    """
    defined = {model.__name__: model for model in dict.fromkeys(_models(module)) if model.__module__ == module.__name__}
    if name is not None:
        return _named(module, file, name, defined)
    if not defined:
        return _class_of(_function_of(module, file))
    if len(defined) == 1:
        return next(iter(defined.values()))
    outermost = outermost_class(file.read_text(encoding="utf-8"), _own_forward(defined))
    if outermost is None:
        raise PackagingError(
            f"{file.name} defines {len(defined)} torch.nn.Module classes ({', '.join(defined)}), so the model is "
            f"ambiguous: {_HOW}"
        )
    others = ", ".join(other for other in defined if other != outermost)
    tell(f"{file.name}: the model is the class {outermost}, which uses the others ({others})")
    return defined[outermost]


def _models(module: ModuleType) -> Iterator[_Model]:
    """The model classes that the file defines or imports, without torch's own."""
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, torch.nn.Module) and not _is_of_torch(value):
            yield value


def _is_of_torch(model: _Model) -> bool:
    return model.__module__.partition(".")[0] == "torch"


def _named(module: ModuleType, file: Path, name: str, defined: Mapping[str, _Model]) -> _Model:
    found = getattr(module, name, None)
    if isinstance(found, type) and issubclass(found, torch.nn.Module):
        return found
    known = list(dict.fromkeys((*defined, *(model.__name__ for model in _models(module)))))
    near = closest_key(name, known)
    advice = f"did you mean {near}?" if near else f"it has {', '.join(known) or 'none'}"
    wrong = (
        f"{file.name} has no class {name}" if found is None else f"{name} of {file.name} is no torch.nn.Module class"
    )
    raise PackagingError(f"neuron_lstm.model.class: {wrong}: {advice}")


def _own_forward(models: Mapping[str, _Model]) -> dict[str, bool]:
    """Whether each class can be served as it is: it has a forward() that is not torch's placeholder."""
    return {name: model.forward is not torch.nn.Module.forward for name, model in models.items()}


def _function_of(module: ModuleType, file: Path) -> FunctionType:
    """The only function that it defines whose name has no leading underscore.

    Raises:
        PackagingError: there is none, or there are several.
    """
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


def _class_of(function: FunctionType) -> _Model:
    """A model class without weights that computes the function, with its name and arguments."""
    members = {"__doc__": function.__doc__, "__module__": function.__module__, "forward": staticmethod(function)}
    return type(function.__name__, (torch.nn.Module,), members)
