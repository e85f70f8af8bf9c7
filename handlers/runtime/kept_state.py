"""State that a request leaves behind in a model's objects, and its return to what it was before.

A request may set attributes, fill buffers and grow lists. What the objects held when the archive was loaded is noted
once; after each request, what differs is put back. So every request is answered as the first one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import chain
from operator import is_, itemgetter
from types import FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import torch

from .state_places import (
    ClassPlace,
    ItemsPlace,
    MappingPlace,
    Place,
    ScriptPlace,
    SetPlace,
    TensorPlace,
    array_place,
    generator_place,
    version_of,
    without_dunder,
)

_OF_MODULES = frozenset(vars(torch.nn.Module())) - {"training"}
"""Attributes that each module of torch has: hooks, and the mappings that are visited by themselves."""
_HELD = ("_parameters", "_buffers", "_modules")
"""Attributes of a module of torch that hold what is set as others."""


class KeptState:
    """The state of a model, of the modules of its files, and of what both refer to."""

    def __init__(
        self,
        model: torch.nn.Module,
        files: Iterable[ModuleType],
        weights: Mapping[str, torch.Tensor],
        rewritten: Iterable[str] = (),
    ) -> None:
        """Note the state. `weights` are not copied: they hold the model's parameters and persistent buffers.

        `rewritten` are names of tensors that are put back after every request.
        """
        self.changed: dict[str, None] = {}
        """Names of what any request has changed, in the order in which it was noticed."""
        modules = list(files)
        own = frozenset(module.__name__ for module in modules)
        originals = {
            id(tensor): weights[name]
            for name, tensor in (*model.named_parameters(), *model.named_buffers())
            if name in weights and weights[name].dtype == tensor.dtype
        }
        visit = _Visit(own, originals)
        visit.value("self", model)
        for module in modules:
            visit.value(module.__name__, module)
        self._places = visit.places
        always = frozenset(rewritten)
        self._always = [place for place in visit.places if place.name in always]
        at_once = (MappingPlace, TensorPlace, ItemsPlace, ClassPlace)
        self._others = [place for place in visit.places if not isinstance(place, at_once)]
        self._tensors = [place.tensor for place in visit.places if isinstance(place, TensorPlace)]
        mappings = [place for place in visit.places if isinstance(place, MappingPlace)]
        classes = [place.attributes for place in visit.places if isinstance(place, ClassPlace)]
        self._lists = [place.items for place in visit.places if isinstance(place, ItemsPlace)]
        self._counted = [*[place.mapping for place in mappings], *self._lists, *classes]
        self._keyed = [place.mapping for place in mappings if not place.has_attributes]
        self._keys = [key for mapping in self._keyed for key in mapping]
        self._read: list[tuple[Callable[[Any], Iterable[Any]], Any]] = [
            (_values_of(place), place.mapping) for place in mappings if place.mapping
        ]
        self._read += [(type(attributes).values, attributes) for attributes in classes]
        self._note()

    def _note(self) -> None:
        """Note what `_is_changed` compares."""
        self._versions = list(map(version_of, self._tensors))
        self._sizes = list(map(len, self._counted))
        self._values = list(self._all_values())

    def _all_values(self) -> Iterable[Any]:
        return chain.from_iterable([*[read(mapping) for read, mapping in self._read], *self._lists])

    def _is_changed(self) -> bool:
        """Whether any place is changed: one pass over all, because most requests change none."""
        return (
            list(map(version_of, self._tensors)) != self._versions
            or list(map(len, self._counted)) != self._sizes
            or self._has_other_values()
            or not all(map(is_, chain.from_iterable(self._keyed), self._keys))
            or any(place.is_changed() for place in self._others)
        )

    def _has_other_values(self) -> bool:
        try:
            return not all(map(is_, self._all_values(), self._values))
        except KeyError:  # an attribute was replaced by another one
            return True

    def restore(self) -> None:
        """Put back what a request has changed."""
        for place in self._always:
            place.restore()
        if not self._always and not self._is_changed():
            return
        changed = [place for place in self._places if place.is_changed()]
        for place in changed:
            names = place.changed if isinstance(place, (MappingPlace, ScriptPlace)) else [place.name]
            self.changed.update(dict.fromkeys(names))
            place.restore()
        self._note()

    def unnoticed(self) -> list[str]:
        """Return the names of tensors whose elements differ, although nothing shows that they were written.

        Writing through `.data` or numpy is not noticed by `restore`.
        """
        return [place.name for place in self._places if isinstance(place, TensorPlace) and place.differs()]


def _values_of(place: MappingPlace) -> Callable[[Mapping[str, Any]], Iterable[Any]]:
    """Return a function that reads the values of a mapping; of a module of torch, without those that each has."""
    names = tuple(_attributes(place.mapping))
    shortens = place.has_attributes and 1 < len(names) < len(place.mapping)
    return itemgetter(*names) if shortens else dict.values  # type: ignore[return-value]  # a dict, though typed wider


_Named = tuple[str, Any]
"""An object with its name, for people."""


class _Visit:
    """A walk over all objects, each once."""

    def __init__(self, own: frozenset[str], originals: Mapping[int, torch.Tensor]) -> None:
        self.places: list[Place] = []
        self._own = own
        self._originals = originals
        self._seen: set[int] = set()
        self._alive: list[object] = []  # an identity is of one object as long as that is alive

    def value(self, name: str, value: Any) -> None:
        """Note an object and what it refers to."""
        pending: list[_Named] = [(name, value)]
        while pending:
            name, value = pending.pop()
            if id(value) not in self._seen and not isinstance(value, (str, int, float, bytes, type(None))):
                self._seen.add(id(value))
                self._alive.append(value)
                pending += self._note(name, value)

    def _note(self, name: str, value: Any) -> Iterable[_Named]:
        """Note one object; returns those that it refers to, with their names."""
        note = next((note for kind, note in self._NOTES if isinstance(value, kind)), None)
        if note is not None:
            return note(self, name, value)
        if (place := generator_place(name, value) or array_place(name, value)) is not None:
            self.places.append(place)
        elif type(value).__module__ in self._own or isinstance(value, SimpleNamespace):
            return [*self._mapping(name, getattr(value, "__dict__", {}), _all), (type(value).__name__, type(value))]
        return ()

    def _tensor(self, name: str, tensor: torch.Tensor) -> Iterable[_Named]:
        self.places.append(TensorPlace(name, tensor, self._originals.get(id(tensor))))
        return ()

    def _script(self, name: str, module: torch.jit.ScriptModule) -> Iterable[_Named]:
        self.places.append(ScriptPlace(name, module))
        return [(f"{name}.{own}", tensor) for own, tensor in (*module.named_buffers(), *module.named_parameters())]

    def _torch_module(self, name: str, module: torch.nn.Module) -> Iterable[_Named]:
        yield from self._mapping(name, vars(module), _attributes)
        for held in _HELD:
            yield from self._mapping(name, vars(module)[held], _all)
        yield type(module).__name__, type(module)

    def _file(self, name: str, module: ModuleType) -> Iterable[_Named]:
        return self._mapping(name, vars(module), without_dunder) if module.__name__ in self._own else ()

    def _dict(self, name: str, values: dict[Any, Any]) -> Iterable[_Named]:
        return self._mapping(name, values)

    def _items(self, name: str, items: Any) -> Iterable[_Named]:
        self.places.append(ItemsPlace(name, items))
        return self._constant(name, items)

    def _constant(self, name: str, items: Iterable[Any]) -> Iterable[_Named]:
        return [(f"{name}[{index}]", item) for index, item in enumerate(items)]

    def _set(self, name: str, items: set[Any]) -> Iterable[_Named]:
        self.places.append(SetPlace(name, items))
        return ()

    def _class(self, name: str, cls: type) -> Iterable[_Named]:
        if cls.__module__ not in self._own:
            return ()
        self.places.append(ClassPlace(name, cls))
        return [(f"{name}.{own}", item) for own, item in without_dunder(vars(cls)).items()]

    def _method(self, name: str, method: Any) -> Iterable[_Named]:
        return [(name, method.__func__)]

    def _function(self, name: str, function: FunctionType) -> Iterable[_Named]:
        if function.__module__ not in self._own:
            return
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        yield from [(f"a default value of {name}", default) for default in defaults]
        if vars(function):
            yield from self._mapping(name, vars(function))
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # not yet set
                yield f"a variable around {name}", cell.cell_contents

    def _mapping(
        self, name: str, mapping: dict[str, Any], chosen: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    ) -> Iterable[_Named]:
        self.places.append(MappingPlace(name, mapping, has_attributes=chosen is not dict))
        return [(f"{name}.{key}", value) for key, value in chosen(mapping).items()]

    _NOTES: tuple[tuple[Any, Callable[[Any, str, Any], Iterable[_Named]]], ...] = (
        (torch.Tensor, _tensor),
        (torch.jit.ScriptModule, _script),
        (torch.nn.Module, _torch_module),
        (ModuleType, _file),
        (dict, _dict),
        ((list, deque, bytearray), _items),
        (set, _set),
        ((tuple, frozenset), _constant),
        (type, _class),
        (FunctionType, _function),
        ((staticmethod, classmethod, MethodType), _method),
    )
    """Functions that note an object, by its kind; the first kind that fits counts."""


def _attributes(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in _OF_MODULES}


def _all(values: Mapping[str, Any]) -> Mapping[str, Any]:
    return values
