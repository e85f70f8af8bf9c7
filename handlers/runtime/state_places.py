"""Places in which a request can leave state: what they held is noted, and can be put back."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from operator import attrgetter, is_
from typing import Any, Protocol

import torch

version_of = attrgetter("_version")
"""The number of calls that have written into a tensor, as torch counts them."""


class Place(Protocol):
    """One object that a request may change."""

    name: str

    def is_changed(self) -> bool:
        """Whether it is not as it was noted."""

    def restore(self) -> None:
        """Put back what was noted."""


def without_dunder(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that Python did not make."""
    return {name: value for name, value in values.items() if not name.startswith("__")}


class MappingPlace:
    """A dict, or the attributes of an object: the keys, and the objects that are their values."""

    def __init__(self, name: str, mapping: dict[str, Any], *, has_attributes: bool) -> None:
        self.name, self.mapping, self.has_attributes = name, mapping, has_attributes
        self._keys, self._values = list(mapping), list(mapping.values())

    def is_changed(self) -> bool:
        """Whether it is not as it was noted."""
        mapping, values = self.mapping, self._values
        return len(mapping) != len(values) or not all(map(is_, mapping.values(), values)) or [*mapping] != self._keys

    @property
    def changed(self) -> list[str]:
        """Names of the entries that are not as they were noted."""
        noted = dict(zip(self._keys, self._values))
        names = [key for key in {**noted, **self.mapping} if noted.get(key, self) is not self.mapping.get(key, self)]
        return [f"{self.name}.{name}" for name in names] or [self.name]

    def restore(self) -> None:
        """Put back what was noted."""
        self.mapping.clear()
        self.mapping.update(zip(self._keys, self._values))


class ItemsPlace:
    """A list, a deque or a bytearray."""

    def __init__(self, name: str, items: Any) -> None:
        self.name, self.items, self._values = name, items, list(items)

    def is_changed(self) -> bool:
        """Whether it is not as it was noted."""
        return len(self.items) != len(self._values) or not all(map(is_, self.items, self._values))

    def restore(self) -> None:
        """Put back what was noted."""
        self.items.clear()
        self.items.extend(self._values)


class SetPlace:
    """A set."""

    def __init__(self, name: str, items: set[Any]) -> None:
        self.name, self._items, self._values = name, items, set(items)

    def is_changed(self) -> bool:
        """Whether it is not as it was noted."""
        return self._items != self._values

    def restore(self) -> None:
        """Put back what was noted."""
        self._items.clear()
        self._items.update(self._values)


class ClassPlace:
    """A class of the user's files, whose attributes can be set."""

    def __init__(self, name: str, cls: type) -> None:
        self.name, self._class, self._values = name, cls, without_dunder(vars(cls))
        self.attributes = vars(cls)

    def is_changed(self) -> bool:
        """Whether it is not as it was noted."""
        now = without_dunder(vars(self._class))
        return len(now) != len(self._values) or not all(map(is_, now.values(), self._values.values()))

    def restore(self) -> None:
        """Put back what was noted."""
        for key in without_dunder(vars(self._class)).keys() - self._values.keys():
            delattr(self._class, key)
        for key, value in self._values.items():
            if vars(self._class).get(key, self) is not value:
                setattr(self._class, key, value)


class ScriptPlace:
    """The buffers of a TorchScript module: those that a call has replaced by other tensors."""

    def __init__(self, name: str, module: torch.nn.Module) -> None:
        self.name = name
        self._noted = [
            (".".join(filter(None, (name, path, own))), part, own, tensor)
            for path, part in module.named_modules()
            for own, tensor in part.named_buffers(recurse=False)
        ]

    def is_changed(self) -> bool:
        """Whether it is not as it was noted."""
        return any(getattr(part, own) is not tensor for _, part, own, tensor in self._noted)

    @property
    def changed(self) -> list[str]:
        """Names of the buffers that are not as they were noted."""
        return [name for name, part, own, tensor in self._noted if getattr(part, own) is not tensor]

    def restore(self) -> None:
        """Put back what was noted."""
        for _, part, own, tensor in self._noted:
            setattr(part, own, tensor)


class TensorPlace:
    """A tensor: torch counts the calls that write into it."""

    def __init__(self, name: str, tensor: torch.Tensor, original: torch.Tensor | None) -> None:
        self.name, self.tensor = name, tensor
        self._sizes = (tensor.shape, tensor.stride()) if tensor.layout == torch.strided else None
        self._original = tensor.detach().clone() if original is None else original
        self._version = version_of(tensor)

    def is_changed(self) -> bool:
        """Whether it is not as it was noted."""
        return bool(version_of(self.tensor) != self._version)

    def restore(self) -> None:
        """Put back what was noted."""
        with torch.no_grad():
            if self._sizes is not None and self.tensor.shape != self._sizes[0]:
                self.tensor.resize_(self._sizes[0])
            self.tensor.copy_(self._original)
        self._version = version_of(self.tensor)

    def differs(self) -> bool:
        """Whether an element is not what it was."""
        if self.tensor.layout != torch.strided or self.tensor.is_quantized:
            return False
        now, before = self.tensor.detach(), self._original
        return now.shape != before.shape or not torch.equal(bits_of(now), bits_of(before))


class ArrayPlace:
    """A numpy array."""

    def __init__(self, name: str, array: Any) -> None:
        self.name, self._array, self._original = name, array, array.copy()
        self._bytes = array.tobytes()

    def is_changed(self) -> bool:
        """Whether it is not as it was noted."""
        return bool(self._array.tobytes() != self._bytes)

    def restore(self) -> None:
        """Put back what was noted."""
        self._array[...] = self._original


class GeneratorPlace:
    """A generator of random numbers that the model owns."""

    def __init__(self, name: str, get: Callable[[], Any], put: Callable[[Any], object]) -> None:
        self.name, self._get, self._put, self._original = name, get, put, get()

    def is_changed(self) -> bool:
        """Whether it is not as it was noted."""
        return str(self._get()) != str(self._original)

    def restore(self) -> None:
        """Put back what was noted."""
        self._put(self._original)


_LARGEST_ARRAY = 1 << 20
"""Bytes of a numpy array that is compared after each request."""


def array_place(name: str, value: Any) -> Place | None:
    """Return the place of a numpy array that is not too large; None for another object."""
    is_array = type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"
    return ArrayPlace(name, value) if is_array and value.nbytes <= _LARGEST_ARRAY else None


def generator_place(name: str, value: Any) -> Place | None:
    """Return the place of a generator of random numbers of torch, Python or numpy; None for another object."""
    if isinstance(value, torch.Generator):
        return TorchGeneratorPlace(name, value.get_state, value.set_state)
    if isinstance(value, random.Random):
        return GeneratorPlace(name, value.getstate, value.setstate)
    if type(value).__module__.startswith("numpy.random") or type(value).__module__ == "mtrand":
        bits = getattr(value, "bit_generator", getattr(value, "_bit_generator", None))
        if bits is not None:
            return GeneratorPlace(name, lambda: bits.state, lambda state: setattr(bits, "state", state))
    return None


class TorchGeneratorPlace(GeneratorPlace):
    """A generator of torch, whose state is a tensor."""

    def is_changed(self) -> bool:
        """Whether it is not as it was noted."""
        return not bool(torch.equal(self._get(), self._original))


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor, in which NaN equals itself."""
    flat = tensor.contiguous().reshape(-1)
    return flat.view(torch.uint8) if flat.numel() else flat
