"""Places in which a request can leave state: each is compared with what it held, and put back."""

from __future__ import annotations

import gc
import random
import sys
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from operator import attrgetter, is_
from types import MappingProxyType
from typing import Any

import torch
from torch.utils import _pytree as pytree

_LARGEST_ARRAY = 1 << 20
"""Bytes of a numpy array that is compared after each request."""
_LARGEST_TENSOR = 1 << 14
"""Elements of a tensor, no parameter, that is."""

UNSET = object()
version_of = attrgetter("_version")
"""The number of calls that have written into a tensor, as torch counts them."""


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor, in which NaN equals itself."""
    flat = tensor.resolve_conj().contiguous().reshape(-1)
    return flat.view(torch.uint8) if flat.numel() else flat


def put_elements(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Write values of the same shape into a tensor; an element that `expand` repeats is written once."""
    once = _once(tensor)
    with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
        _picked(tensor, once).copy_(_picked(values, once))


def _once(tensor: torch.Tensor) -> Any:
    """Return the index of the elements that `expand` does not repeat; None: it repeats none."""
    if tensor.layout is not torch.strided or 0 not in tensor.stride():
        return None
    return tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())


def _picked(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    return tensor if index is None else tensor[index]


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Types of integers by their bytes."""


def _as_integers(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of a tensor as integers: those of -0.0 and 0.0 differ, and those of NaN equal themselves."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.view(_INTEGERS[tensor.element_size()]) if tensor.is_floating_point() else tensor


class Place:
    """A place in which a request can leave state: `look` returns what is compared, `put` puts back what was noted."""

    def __init__(self, name: str, look: Callable[[], Any], put: Callable[[], object]) -> None:
        self.name, self._look, self._put, self._noted = name, look, put, look()

    def is_changed(self) -> bool:
        """Whether what it holds is not as it was noted."""
        return bool(self._look() != self._noted)

    def changed(self) -> list[str]:
        """Return the names of what is not as it was noted."""
        return [self.name]

    def restore(self) -> None:
        """Put back what was noted."""
        self._put()
        self._noted = self._look()


class TensorPlace(Place):
    """A tensor. torch counts the calls that write into it, but for some kernels, inference mode, `.data` and numpy.

    So small tensors are compared, and of the others their address.
    """

    def __init__(self, name: str, tensor: torch.Tensor, original: torch.Tensor | None, *, uncounted: bool) -> None:
        self.tensor = tensor
        self.is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
        is_small = tensor.numel() <= _LARGEST_TENSOR and tensor.device.type == "cpu" and not tensor.is_quantized
        is_lazy = tensor.is_conj() or tensor.is_neg()  # a view whose elements are not those in its memory
        is_compared = self.is_plain and is_small and type(tensor) is torch.Tensor and not is_lazy
        self.counted = not (tensor.is_inference() or uncounted or is_compared)
        self.memory, self._once = tensor.detach(), _once(tensor)
        if original is not None and original.data_ptr() == self.memory.data_ptr():
            original = None  # the model has taken the weights themselves
        before = self.memory if original is None else original
        once = _picked(before, self._once)
        once = once.clone() if original is None else once
        self.original = once if self._once is None else once.expand(before.shape)
        can_alias = not (self.counted or is_lazy or tensor.is_quantized or tensor.layout is not torch.strided)
        self.bits = (_as_integers(self.memory), _as_integers(self.original)) if can_alias else None
        """Views of a tensor that is compared: of its memory, and of what that held."""
        super().__init__(name, self._look_at, self._put_elements)

    def _look_at(self) -> tuple[int, int, bool]:
        changes = version_of(self.tensor) if self.counted else int(self.differs())
        is_alike = not self.is_plain or self.tensor.is_set_to(self.memory)
        return changes, self.tensor.data_ptr() if self.is_plain else 0, is_alike

    def _put_elements(self) -> None:
        if self.is_plain:
            with torch.inference_mode() if self.tensor.is_inference() else torch.no_grad():
                self.tensor.data = self.memory  # its own memory and shape, if another one's was set
        put_elements(self.tensor, self.original)

    def differs(self) -> bool:
        """Whether an element is not what it was."""
        now, before = self.tensor.detach(), self.original
        if now.is_quantized:
            return False
        return now.shape != before.shape or not _equal(_picked(now, self._once), _picked(before, self._once))


class TypePlace(Place):
    """The class of an object."""

    def __init__(self, name: str, value: Any) -> None:
        self.value, self.own = value, type(value)
        super().__init__(f"{name}.__class__", lambda: type(value), partial(setattr, value, "__class__", type(value)))


_KINDS: tuple[Any, ...] = (OrderedDict, dict, MappingProxyType, deque, list, set)


class HolderPlace(Place):
    """A holder of objects, as a list: the same objects must be in it."""

    def __init__(self, name: str, holder: Any) -> None:
        self.holder = holder
        self.kind = next(kind for kind in _KINDS if isinstance(holder, kind))
        """The class of Python by whose methods it is read and filled: those of a user's class may do something else."""
        self.before = list(self.kind.__iter__(holder))
        super().__init__(name, lambda: list(map(id, self.look())), self.put)

    def look(self) -> Iterable[Any]:
        """Return the objects that it holds."""
        return self.kind.__iter__(self.holder)  # type: ignore[no-any-return]

    def put(self) -> None:
        """Put back the objects."""
        self.kind.clear(self.holder)
        self.kind.extend(self.holder, self.before)


class SetPlace(HolderPlace):
    """A set: the same objects, in the same order of iteration."""

    def __init__(self, name: str, items: Any) -> None:
        self._copy = set(items)
        super().__init__(name, items)

    def put(self) -> None:
        """Put back the objects. Where several want one slot, their order depends on the way in which they are added.

        Raises `RuntimeError`: the order is another one all the same, so the model must be made anew.
        """
        for items in (self._copy, self.before, self.before[::-1]):
            set.clear(self.holder)
            set.update(self.holder, items)
            if all(map(is_, set.__iter__(self.holder), self.before)):
                return
        raise RuntimeError(f"the order of {self.name} is another one")


class MappingPlace(HolderPlace):
    """A dict, or the attributes of an object, its `owner`: the keys, and the objects that are their values."""

    def __init__(self, name: str, mapping: Any, owner: Any = None) -> None:
        self.owner = owner
        super().__init__(name, mapping)
        self._before = self._entries()

    def _entries(self) -> dict[Any, Any]:
        return dict(self.kind.items(self.holder))

    def look(self) -> Iterable[Any]:
        """Return its keys and values."""
        return chain(self.kind.__iter__(self.holder), self.kind.values(self.holder))

    def changed(self) -> list[str]:
        """Return the names of the entries that are not as they were noted."""
        before, now = self._before, self._entries()
        names = [key for key in {**before, **now} if before.get(key, self) is not now.get(key, self)]
        return [f"{self.name}.{name}" for name in names] or [self.name]

    def is_changed(self) -> bool:
        """Whether it holds others, or its owner has another dict."""
        return super().is_changed() or (self.owner is not None and vars(self.owner) is not self.holder)

    def put(self) -> None:
        """Put back the keys and values, and the dict of its owner."""
        self.kind.clear(self.holder)
        for key, value in self._before.items():
            self.kind.__setitem__(self.holder, key, value)
        if self.owner is not None and vars(self.owner) is not self.holder:
            object.__setattr__(self.owner, "__dict__", self.holder)


class SlotPlace(Place):
    """A slot of an object, or a variable around a function: it can be unset. A class can have made it read-only."""

    def __init__(self, name: str, value: Any, slot: Any) -> None:
        self._value, self._slot, self.before = value, slot, _held(slot, value)
        self.is_set = self.before is not UNSET
        self.read = partial(slot.__get__, value)
        """A function that returns the object; it raises an error if there is none."""
        super().__init__(name, lambda: id(_held(slot, value)), self._put_object)

    def _put_object(self) -> None:
        if self.is_set:
            self._slot.__set__(self._value, self.before)
        elif _held(self._slot, self._value) is not UNSET:
            self._slot.__delete__(self._value)


def _held(slot: Any, value: Any) -> Any:
    try:
        return slot.__get__(value)
    except (AttributeError, ValueError):
        return UNSET


class ScriptPlace(Place):
    """An attribute of a TorchScript program that is no buffer. Reading it makes a copy, but of tensors."""

    def __init__(self, name: str, part: Any, own: str) -> None:
        self._part, self._own = part, own
        self._leaves, self._spec = pytree.tree_flatten(part.getattr(own))
        self._leaves = [_copy(leaf) for leaf in self._leaves]
        super().__init__(name, self._is_other, self._put_value)

    def _is_other(self) -> bool:
        leaves, spec = pytree.tree_flatten(self._part.getattr(self._own))
        return spec != self._spec or not all(map(_equal, leaves, self._leaves))

    def _put_value(self) -> None:
        self._part.setattr(self._own, pytree.tree_unflatten([_copy(leaf) for leaf in self._leaves], self._spec))


def _copy(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


def _equal(one: Any, other: Any) -> bool:
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return repr(one) == repr(other) if isinstance(one, (float, complex)) else bool(one == other)  # -0.0 is not 0.0
    if one.layout is not torch.strided or other.layout is not torch.strided:
        return one.layout is other.layout
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(bits_of(one), bits_of(other))


def dict_of(mapping: Any) -> dict[Any, Any] | None:
    """Return a plain dict itself, or the one behind the attributes of a class; None for a mapping of another kind.

    >>> dict_of({1: 2}), type(dict_of(vars(Exception)))
    ({1: 2}, <class 'dict'>)
    """
    held = gc.get_referents(mapping)[0] if isinstance(mapping, MappingProxyType) else mapping
    return held if type(held) is dict else None


def content_of(held: dict[Any, Any]) -> object:
    """Return what changes with each write of another object into a dict: the identities of all that it holds."""
    return [*map(id, held), *map(id, held.values())]


class ClassPlace(MappingPlace):
    """A class of the user's files, whose attributes can be set."""

    def __init__(self, name: str, cls: type) -> None:
        self._class = cls
        super().__init__(name, vars(cls))

    def put(self) -> None:
        """Put back the attributes. Raises `RuntimeError`: their order is another one."""
        for key in self.holder.keys() - self._before.keys():
            type.__delattr__(self._class, key)
        for key, value in self._before.items():
            if self.holder.get(key, self) is not value:
                type.__setattr__(self._class, key, value)
        if list(self.holder) != list(self._before):
            raise RuntimeError(f"the order of the attributes of {self.name} is another one")


def array_place(name: str, value: Any) -> Place | None:
    """Return the place of an array of Python, or of a numpy array that is not too large; None for another object."""
    if isinstance(value, (array, bytearray)):
        numbers: Any = value[:]
        return Place(name, partial(bytes, value), lambda: value.__setitem__(slice(None), numbers))
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.ndarray) or value.nbytes > _LARGEST_ARRAY:
        return None
    before, is_writeable = value.copy(), value.flags.writeable

    def put() -> None:
        value.flags.writeable = True
        if value.dtype != before.dtype:
            value.dtype = before.dtype
        if value.shape != before.shape:
            value.resize(before.shape, refcheck=False)
        value[...] = before
        value.flags.writeable = is_writeable

    return Place(name, lambda: (value.flags.writeable, value.dtype, value.shape, value.tobytes()), put)


def generator_place(name: str, value: Any) -> Place | None:
    """Return the place of a generator of random numbers of torch, Python or numpy; None for another object."""
    if isinstance(value, torch.Generator):
        return Place(name, lambda: value.get_state().tolist(), partial(value.set_state, value.get_state()))
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return Place(name, value.getstate, partial(value.setstate, value.getstate()))
    if type(value).__module__.startswith("numpy.random") or type(value).__module__ == "mtrand":
        if hasattr(value, "get_state"):  # with the second number of a pair, which the generator of bits has not
            return Place(name, lambda: str(value.get_state(legacy=False)), partial(value.set_state, value.get_state()))
        bits = getattr(value, "bit_generator", getattr(value, "_bit_generator", None))
        if bits is not None:
            return Place(name, lambda: str(bits.state), partial(setattr, bits, "state", bits.state))
    return None
