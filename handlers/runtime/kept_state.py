"""State that a request leaves behind in a model's objects, and its return to what it was before.

A request may set attributes, fill buffers and grow lists. What the objects held when the archive was loaded is noted
once; after each request, what differs is put back. So every request is answered as the first one.
"""

from __future__ import annotations

import random
from argparse import Namespace
from collections import UserDict, UserList, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from copyreg import _slotnames  # type: ignore[attr-defined]  # typeshed leaves it out
from functools import partial
from itertools import chain
from operator import attrgetter, is_, itemgetter
from types import BuiltinMethodType, FunctionType, MappingProxyType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import torch

_OF_MODULES = frozenset(vars(torch.nn.Module())) - {"training"}
"""Attributes that each module of torch has: hooks, and the mappings that are visited by themselves."""
_HELD = ("_parameters", "_buffers", "_modules")
"""Attributes of a module of torch that hold what is set as others."""
_LARGEST_ARRAY = 1 << 20
"""Bytes of a numpy array that is compared after each request."""

_WITH_ATTRIBUTES = (torch.nn.Module, ModuleType, type, FunctionType, staticmethod, classmethod, MethodType)
"""Kinds of objects whose attributes are noted as those of their kind, or belong to others."""

version_of = attrgetter("_version")
"""The number of calls that have written into a tensor, as torch counts them."""


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
        originals = {
            id(tensor): weights[name]
            for name, tensor in (*model.named_parameters(), *model.named_buffers())
            if name in weights and weights[name].dtype == tensor.dtype
        }
        visit = _Visit(frozenset(module.__name__ for module in modules), originals)
        visit.value("self", model)
        for module in modules:
            visit.value(module.__name__, module)
        self._places = visit.places
        always = frozenset(rewritten)
        self._always = [place for place in visit.places if place.name in always]
        self._tensor_places = [place for place in visit.places if isinstance(place, _TensorPlace)]
        self._others = [place for place in visit.places if not isinstance(place, (_TensorPlace, _HolderPlace))]
        self._tensors = [place.tensor for place in self._tensor_places]
        holders = [place.holder for place in visit.places if isinstance(place, _HolderPlace)]
        self._empty, self._filled = [held for held in holders if not held], [held for held in holders if held]
        of_torch = [held for held in self._filled if isinstance(held, dict) and held.keys() >= _OF_MODULES]
        self._modules = [(_reader_of_module(held), held) for held in of_torch]
        self._classes = [held for held in self._filled if isinstance(held, MappingProxyType)]
        others = {id(held) for held in (*of_torch, *self._classes)}
        self._iterated = [held for held in self._filled if id(held) not in others]
        self._dicts = [held for held in self._iterated if isinstance(held, dict)]
        self._note()

    def _note(self) -> None:
        """Note what `_is_changed` compares."""
        self._versions = list(map(version_of, self._tensors))
        self._sizes = list(map(len, self._filled))
        self._objects = self._all_objects()

    def _all_objects(self) -> list[Any]:
        """Return the objects that are held, and the keys of dicts; of a module of torch, without what each has."""
        objects: list[Any] = []
        add = objects.extend
        for held in self._iterated:
            add(held)
        for mapping in (*self._dicts, *self._classes):
            add(mapping.values())
        for read, attributes in self._modules:
            add(read(attributes))
        return objects

    def _is_changed(self) -> bool:
        """Whether any place is changed: one pass over all, because most requests change none."""
        try:
            return (
                list(map(version_of, self._tensors)) != self._versions
                or any(self._empty)
                or list(map(len, self._filled)) != self._sizes
                or not all(map(is_, self._all_objects(), self._objects))
                or any(place.is_changed() for place in self._others)
            )
        except KeyError:  # an attribute was replaced by another one
            return True

    def restore(self) -> None:
        """Put back what a request has changed."""
        for place in self._always:
            place.restore()
        if not self._always and not self._is_changed():
            return
        for place in [place for place in self._places if place.is_changed()]:
            self.changed.update(dict.fromkeys(place.changed()))
            place.restore()
        self._note()

    def unnoticed(self) -> list[str]:
        """Return the names of tensors whose elements differ, although nothing shows that they were written.

        Writing through `.data` or numpy is not noticed by `restore`.
        """
        return [place.name for place in self._tensor_places if place.differs()]


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor, in which NaN equals itself."""
    flat = tensor.contiguous().reshape(-1)
    return flat.view(torch.uint8) if flat.numel() else flat


class _Place:
    """A place in which a request can leave state: `look` returns what is compared, `put` puts back what was noted."""

    def __init__(self, name: str, look: Callable[[], Any], put: Callable[[], object]) -> None:
        self.name, self._look, self._put, self._noted = name, look, put, look()

    def is_changed(self) -> bool:
        return bool(self._look() != self._noted)

    def changed(self) -> list[str]:
        """Return the names of what is not as it was noted."""
        return [self.name]

    def restore(self) -> None:
        self._put()
        self._noted = self._look()


class _TensorPlace(_Place):
    """A tensor: torch counts the calls that write into it."""

    def __init__(self, name: str, tensor: torch.Tensor, original: torch.Tensor | None) -> None:
        self.tensor = tensor
        self._original = tensor.detach().clone() if original is None else original
        super().__init__(name, partial(version_of, tensor), self._put_elements)

    @torch.no_grad()
    def _put_elements(self) -> None:
        if self.tensor.layout == torch.strided and self.tensor.shape != self._original.shape:
            self.tensor.resize_(self._original.shape)
        self.tensor.copy_(self._original)

    def differs(self) -> bool:
        """Whether an element is not what it was."""
        if self.tensor.layout != torch.strided or self.tensor.is_quantized:
            return False
        now, before = self.tensor.detach(), self._original
        return now.shape != before.shape or not torch.equal(bits_of(now), bits_of(before))


class _HolderPlace(_Place):
    """A holder of objects, as a list: the same objects must be in it."""

    def __init__(self, name: str, holder: Any, look: Callable[[], Iterable[Any]], put: Callable[[], object]) -> None:
        self.holder = holder
        super().__init__(name, lambda: list(map(id, look())), put)


class _MappingPlace(_HolderPlace):
    """A dict, or the attributes of an object: the keys, and the objects that are their values."""

    def __init__(self, name: str, mapping: dict[Any, Any]) -> None:
        self._before = dict(mapping)
        super().__init__(name, mapping, lambda: chain(mapping, mapping.values()), self._put_entries)

    def changed(self) -> list[str]:
        before, now = self._before, self.holder
        names = [key for key in {**before, **now} if before.get(key, self) is not now.get(key, self)]
        return [f"{self.name}.{name}" for name in names] or [self.name]

    def _put_entries(self) -> None:
        self.holder.clear()
        self.holder.update(self._before)


class _ClassPlace(_HolderPlace):
    """A class of the user's files, whose attributes can be set."""

    def __init__(self, name: str, cls: type) -> None:
        self._class, self._before = cls, _without_dunder(vars(cls))
        super().__init__(name, vars(cls), lambda: _without_dunder(vars(cls)).values(), self._put_attributes)

    def _put_attributes(self) -> None:
        for key in _without_dunder(self.holder).keys() - self._before.keys():
            delattr(self._class, key)
        for key, value in self._before.items():
            if self.holder.get(key, self) is not value:
                setattr(self._class, key, value)


def _reader_of_module(attributes: dict[str, Any]) -> itemgetter[tuple[Any, ...]]:
    """Return a function that reads the attributes of a module of torch, without those that each has."""
    return itemgetter(_HELD[0], *(name for name in attributes if name not in _OF_MODULES))


def _without_dunder(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that Python did not make."""
    return {name: value for name, value in values.items() if not name.startswith("__")}


_Named = tuple[str, Any]
"""An object with its name, for people."""


class _Visit:
    """A walk over all objects, each once."""

    def __init__(self, own: frozenset[str], originals: Mapping[int, torch.Tensor]) -> None:
        self.places: list[_Place] = []
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
            return [*note(self, name, value), *self._attributes(name, value)]
        if (place := _generator_place(name, value) or _array_place(name, value)) is not None:
            self.places.append(place)
        elif type(value).__module__ in self._own or isinstance(value, (SimpleNamespace, Namespace, UserDict, UserList)):
            attributes = self._mapping(name, getattr(value, "__dict__", {}))
            return [*attributes, *self._slots(name, value), (type(value).__name__, type(value))]
        return ()

    def _attributes(self, name: str, value: Any) -> Iterable[_Named]:
        """Note what is set on a tensor, or on an object of a class that the user derived from `list` or `dict`."""
        attributes = None if isinstance(value, _WITH_ATTRIBUTES) else getattr(value, "__dict__", None)
        return self._mapping(name, attributes) if type(attributes) is dict else ()

    def _slots(self, name: str, value: Any) -> Iterator[_Named]:
        for slot in _slotnames(type(value)):
            if hasattr(value, slot):
                held, look = getattr(value, slot), partial(lambda slot: id(getattr(value, slot, None)), slot)
                self.places.append(_Place(f"{name}.{slot}", look, partial(setattr, value, slot, held)))
                yield f"{name}.{slot}", held

    def _tensor(self, name: str, tensor: torch.Tensor) -> Iterable[_Named]:
        self.places.append(_TensorPlace(name, tensor, self._originals.get(id(tensor))))
        return ()

    def _script(self, name: str, module: torch.jit.ScriptModule) -> Iterable[_Named]:
        """Note the tensors; and each buffer, in whose place a call may set another tensor."""
        for path, part in module.named_modules():
            for own, tensor in part.named_buffers(recurse=False):
                full_name = ".".join(filter(None, (name, path, own)))
                look = partial(lambda part, own: id(getattr(part, own)), part, own)
                self.places.append(_Place(full_name, look, partial(setattr, part, own, tensor)))
        return [(f"{name}.{own}", tensor) for own, tensor in (*module.named_buffers(), *module.named_parameters())]

    def _torch_module(self, name: str, module: torch.nn.Module) -> Iterable[_Named]:
        self.places.append(_MappingPlace(name, vars(module)))
        yield from [(f"{name}.{own}", value) for own, value in vars(module).items() if own not in _OF_MODULES]
        for held in (*_HELD, "_forward_hooks", "_forward_pre_hooks"):
            yield from self._mapping(name, vars(module)[held])
        yield type(module).__name__, type(module)

    def _file(self, name: str, module: ModuleType) -> Iterable[_Named]:
        if module.__name__ not in self._own:
            return ()
        self.places.append(_MappingPlace(name, vars(module)))
        return _members(name, vars(module))

    def _mapping(self, name: str, mapping: dict[Any, Any]) -> Iterable[_Named]:
        self.places.append(_MappingPlace(name, mapping))
        return [(f"{name}.{key}", value) for key, value in mapping.items()]

    def _items(self, name: str, items: Any) -> Iterable[_Named]:
        """Note a list, a deque or a bytearray."""
        before = list(items)
        self.places.append(
            _HolderPlace(name, items, partial(list, items), lambda: (items.clear(), items.extend(before)))
        )
        return self._constant(name, items)

    def _constant(self, name: str, items: Iterable[Any]) -> Iterable[_Named]:
        return [(f"{name}[{index}]", item) for index, item in enumerate(items)]

    def _set(self, name: str, items: Any) -> Iterable[_Named]:
        before = set(items)
        self.places.append(_Place(name, partial(set, items), lambda: (items.clear(), items.update(before))))
        return self._constant(name, items)

    def _class(self, name: str, cls: type) -> Iterable[_Named]:
        if cls.__module__ not in self._own:
            return ()
        self.places.append(_ClassPlace(name, cls))
        return _members(name, vars(cls))

    def _method(self, name: str, method: Any) -> Iterable[_Named]:
        # The generators of the process are behind `random.choice` and its like. They are not the model's.
        holder = getattr(method, "__self__", None)
        own = () if _generator_place(name, holder) else ((name, holder),)
        return [(name, getattr(method, "__func__", None)), *own]

    def _partial(self, name: str, call: partial[Any]) -> Iterable[_Named]:
        return [(name, call.func), (name, call.args), (name, call.keywords)]

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

    _NOTES: tuple[tuple[Any, Callable[[Any, str, Any], Iterable[_Named]]], ...] = (
        (torch.Tensor, _tensor),
        (torch.jit.ScriptModule, _script),
        (torch.nn.Module, _torch_module),
        (ModuleType, _file),
        (dict, _mapping),
        ((list, deque, bytearray), _items),
        (set, _set),
        ((tuple, frozenset), _constant),
        (type, _class),
        (FunctionType, _function),
        ((staticmethod, classmethod, MethodType, BuiltinMethodType), _method),
        (partial, _partial),
    )
    """Functions that note an object, by its kind; the first kind that fits counts."""


def _members(name: str, values: Mapping[str, Any]) -> list[_Named]:
    return [(f"{name}.{own}", value) for own, value in _without_dunder(values).items()]


def _array_place(name: str, value: Any) -> _Place | None:
    """Return the place of a numpy array that is not too large; None for another object."""
    if type(value).__module__ != "numpy" or type(value).__name__ != "ndarray" or value.nbytes > _LARGEST_ARRAY:
        return None
    before = value.copy()
    return _Place(name, value.tobytes, lambda: value.__setitem__(..., before))


def _generator_place(name: str, value: Any) -> _Place | None:
    """Return the place of a generator of random numbers of torch, Python or numpy; None for another object."""
    if isinstance(value, torch.Generator):
        state = value.get_state()
        return _Place(name, lambda: value.get_state().tolist(), lambda: value.set_state(state))
    if isinstance(value, random.Random):
        return _Place(name, value.getstate, partial(value.setstate, value.getstate()))
    if type(value).__module__.startswith("numpy.random") or type(value).__module__ == "mtrand":
        bits = getattr(value, "bit_generator", getattr(value, "_bit_generator", None))
        if bits is not None:
            return _Place(name, lambda: str(bits.state), partial(setattr, bits, "state", bits.state))
    return None
