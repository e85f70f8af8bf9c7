"""Walk over the objects that a model refers to, which finds the places of its state."""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Callable, Iterable, Mapping
from functools import _lru_cache_wrapper, cached_property, partial, partialmethod, singledispatchmethod
from itertools import chain
from types import (
    BuiltinMethodType,
    CellType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

import torch
from torch.utils import _pytree as pytree

from .state_places import (
    ClassPlace,
    HolderPlace,
    MappingPlace,
    Place,
    ScriptPlace,
    SetPlace,
    SlotPlace,
    TensorPlace,
    TypePlace,
    array_place,
    generator_place,
)

OF_MODULES = frozenset(vars(torch.nn.Module())) - {"training"}
"""Attributes that each module of torch has: hooks, and the mappings that are visited by themselves."""
_HELD = ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks")
"""Attributes of a module of torch that hold what is set as others, and its hooks."""
_OF_HOOKS = ("_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs")
"""Attributes that say how the hooks are called."""
_WITH_ATTRIBUTES = (torch.nn.Module, ModuleType, type, FunctionType, staticmethod, classmethod, MethodType)
"""Kinds of objects whose attributes are noted as those of their kind, or belong to others."""
_OF_PYTHON = (
    *(SimpleNamespace, Namespace, UserDict, UserList, ChainMap, WeakKeyDictionary, WeakValueDictionary, WeakSet),
    *(cached_property, singledispatchmethod),
)
"""Kinds of Python's own objects with attributes."""
_MADE_BY_PYTHON = 1 << 9
"""The flag of types that a statement or a call has made, as `__flags__` have it."""
_VALUES = (str, int, float, bool, complex, bytes, type(None))
_UNCOUNTED = ("running_mean", "running_var")
"""Names of buffers into which kernels write without counting it."""


_Named = tuple[str, Any]
"""An object with its name, for people."""


class StateWalk:
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
            if id(value) not in self._seen and type(value) not in _VALUES:
                self._seen.add(id(value))
                self._alive.append(value)
                pending += self._note(name, value)

    def _note(self, name: str, value: Any) -> Iterable[_Named]:
        """Note one object; returns those that it refers to, with their names."""
        is_own = self._is_own(type(value))
        found: list[_Named] = []
        note = next((note for kind, note in self._NOTES if isinstance(value, kind)), None)
        if note is not None:
            found += [*note(self, name, value), *self._attributes(name, value)]
        elif (place := generator_place(name, value) or array_place(name, value)) is not None:
            self.places.append(place)
            found += self._attributes(name, value)
            if getattr(getattr(value, "dtype", None), "hasobject", False):
                found += self._constant(name, value.ravel().tolist())
        elif (is_own or isinstance(value, _OF_PYTHON)) and hasattr(value, "__dict__"):
            found += self._mapping(name, vars(value), value if vars(value) is vars(value) else None)
        if is_own:
            found += [*self._class_and_slots(name, value)]
        elif isinstance(value, (torch.nn.Module, *_OF_PYTHON)):
            self.places.append(TypePlace(name, value))
        return found

    def _is_own(self, made: Any) -> bool:
        """Whether a class or a cache is of the user's files: it is named after one, or only a call has made it."""
        return made.__module__ in self._own or _is_made_by_call(made)

    def _attributes(self, name: str, value: Any) -> Iterable[_Named]:
        """Note what is set on a tensor, or on an object of a class that the user derived from `list` or `dict`."""
        attributes = None if isinstance(value, _WITH_ATTRIBUTES) else getattr(value, "__dict__", None)
        return self._mapping(name, attributes, value) if type(attributes) is dict else ()

    def _class_and_slots(self, name: str, value: Any) -> Iterable[_Named]:
        """Note the class of an object of the user's, and its slots."""
        own = type(value)
        members = [vars(cls).items() for cls in own.__mro__ if "__slots__" in vars(cls)]
        slots = [(f"{name}.{slot}", one) for slot, one in chain(*members) if isinstance(one, MemberDescriptorType)]
        places = [SlotPlace(full_name, value, slot) for full_name, slot in slots]
        self.places += [TypePlace(name, value), *places]
        return [*((place.name, place.before) for place in places if place.is_set), (own.__name__, own)]

    def _tensor(self, name: str, tensor: torch.Tensor) -> Iterable[_Named]:
        is_strided = tensor.layout is torch.strided
        if tensor.is_inference() and not is_strided:
            return ()
        original, uncounted = self._originals.get(id(tensor)), is_strided and name.endswith(_UNCOUNTED)
        self.places.append(TensorPlace(name, tensor, original, uncounted=uncounted))
        return ()

    def _script(self, name: str, module: torch.jit.ScriptModule) -> Iterable[_Named]:
        """Note the tensors; each buffer, in whose place a call may set another tensor; and what its code names else."""
        code = module._c.dump_to_str(True, False, False)  # noqa: SLF001 - nothing else tells of attributes
        written, named = ({*re.findall(rf'{kind}Attr\[name="(\w+)"', code)} for kind in ("Set", ""))
        known = {tensor.data_ptr() for tensor in (*module.buffers(), *module.parameters())}
        for path, part in module.named_modules():
            for own, tensor in part.named_buffers(recurse=False):
                full_name = ".".join(filter(None, (name, path, own)))
                look = partial(lambda part, own: id(getattr(part, own)), part, own)
                self.places.append(Place(full_name, look, partial(setattr, part, own, tensor)))
            if name != "self":  # Python code has it
                self.places.append(MappingPlace(".".join(filter(None, (name, path))), vars(part), part))
            held = part._c  # noqa: SLF001 - nothing else tells of attributes that are no buffers
            for own in filter(held.hasattr, named):
                if _can_change(held.getattr(own), known, is_set=own in written or name != "self"):
                    self.places.append(ScriptPlace(".".join(filter(None, (name, path, own))), held, own))
        return [(f"{name}.{own}", tensor) for own, tensor in (*module.named_buffers(), *module.named_parameters())]

    def _torch_module(self, name: str, module: torch.nn.Module) -> Iterable[_Named]:
        self.places.append(MappingPlace(name, vars(module), module))
        yield from [(f"{name}.{own}", value) for own, value in vars(module).items() if own not in OF_MODULES]
        for held in held_by(vars(module)):
            yield from self._mapping(name, vars(module)[held])

    def _file(self, name: str, module: ModuleType) -> Iterable[_Named]:
        is_made_by_call = type(module) is ModuleType and sys.modules.get(module.__name__) is not module
        if module.__name__ not in self._own and not is_made_by_call:
            return ()
        self.places.append(MappingPlace(name, vars(module)))
        return self._entries(name, {key: value for key, value in vars(module).items() if key != "__builtins__"})

    def _mapping(self, name: str, mapping: dict[Any, Any], owner: Any = None) -> Iterable[_Named]:
        self.places.append(MappingPlace(name, mapping, owner))
        entries = dict(dict.items(mapping))
        return [*self._entries(name, entries), *((f"a key of {name}", key) for key in entries)]

    def _entries(self, name: str, mapping: Mapping[Any, Any]) -> Iterable[_Named]:
        return [(f"{name}.{key}", value) for key, value in mapping.items()]

    def _items(self, name: str, items: Any) -> Iterable[_Named]:
        self.places.append(place := HolderPlace(name, items))
        return self._constant(name, place.before)

    def _constant(self, name: str, items: Iterable[Any]) -> Iterable[_Named]:
        return [(f"{name}[{index}]", item) for index, item in enumerate(items)]

    def _set(self, name: str, items: Any) -> Iterable[_Named]:
        self.places.append(SetPlace(name, items))
        return self._constant(name, items)

    def _class(self, name: str, cls: type) -> Iterable[_Named]:
        if not self._is_own(cls):
            return ()
        self.places.append(ClassPlace(name, cls))
        return [*self._entries(name, vars(cls)), *((base.__name__, base) for base in cls.__bases__)]

    def _method(self, name: str, method: Any) -> Iterable[_Named]:
        # The generators of the process are behind `random.choice` and its like. They are not the model's.
        holder = getattr(method, "__self__", None)
        own = () if generator_place(name, holder) else ((name, holder),)
        return [(name, getattr(method, "__func__", None)), *own]

    def _cache(self, name: str, function: Any) -> Iterable[_Named]:
        """Note a function of the user's with a cache, which is emptied after a request that filled it."""
        is_filled = function.cache_info().currsize > 0

        def clear() -> None:
            if is_filled:
                raise RuntimeError(f"the cache {name} was not empty")
            function.cache_clear()

        if self._is_own(function):
            self.places.append(Place(name, lambda: function.cache_info()[1::2], clear))
        return [(name, function.__wrapped__)]

    def _function(self, name: str, function: FunctionType) -> Iterable[_Named]:
        # `functools.wraps` sets the name of another module.
        if self._own.isdisjoint((function.__module__, function.__globals__.get("__name__"))):
            return
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        yield from [(f"a default value of {name}", default) for default in defaults]
        yield from self._mapping(name, vars(function))
        yield from [(f"a variable around {name}", cell) for cell in function.__closure__ or ()]

    def _cell(self, name: str, cell: CellType) -> Iterable[_Named]:
        place = SlotPlace(name, cell, CellType.cell_contents)
        self.places.append(place)
        return [(name, place.before)] if place.is_set else ()

    _NOTES: tuple[tuple[Any, Callable[[Any, str, Any], Iterable[_Named]]], ...] = (
        (torch.Tensor, _tensor),
        (torch.jit.ScriptModule, _script),
        (torch.nn.Module, _torch_module),
        (ModuleType, _file),
        (dict, _mapping),
        ((list, deque), _items),
        (set, _set),
        ((tuple, frozenset), _constant),
        (type, _class),
        (FunctionType, _function),
        (CellType, _cell),
        (memoryview, lambda _, name, view: [(name, view.obj)]),
        ((staticmethod, classmethod, MethodType, BuiltinMethodType, MethodWrapperType), _method),
        ((partial, partialmethod), lambda _, name, call: [(name, call.func), (name, call.args), (name, call.keywords)]),
        (property, lambda _, name, value: [(name, value.fget), (name, value.fset), (name, value.fdel)]),
        (MappingProxyType, _entries),
        (_lru_cache_wrapper, _cache),
    )
    """Functions that note an object, by its kind; the first kind that fits counts."""


def _is_made_by_call(made: Any) -> bool:
    """Whether the module that a class or a cache is named after does not hold it, as with parametrized layers."""
    if isinstance(made, type) and not made.__flags__ & _MADE_BY_PYTHON:
        return False
    held: Any = sys.modules.get(made.__module__)
    for name in getattr(made, "__qualname__", "").split("."):
        held = getattr(held, name, None)
    return held is not made


def held_by(attributes: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the attributes of a module of torch that are dicts with what its calls use."""
    has_hooks = attributes["_forward_hooks"] or attributes["_forward_pre_hooks"]
    return (*_HELD, *(name for name in _OF_HOOKS if has_hooks and name in attributes))


def _can_change(value: Any, known: set[int], *, is_set: bool) -> bool:
    """Whether a program can change an attribute. The tensors at `known` addresses are noted by themselves."""
    if isinstance(value, torch.ScriptObject):
        return False
    tensors = [leaf for leaf in pytree.tree_flatten(value)[0] if isinstance(leaf, torch.Tensor)]
    is_known = bool(tensors) and all(tensor.data_ptr() in known for tensor in tensors)
    return not is_known and (is_set or bool(tensors) or isinstance(value, (list, dict)))
