"""State that a request leaves behind in a model's objects, and its return to what it was before.

A request may set attributes, fill buffers and grow lists. What the objects held when the archive was loaded is noted
once; after each request, what differs is put back. So every request is answered as the first one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import is_, itemgetter, methodcaller
from types import MappingProxyType, ModuleType
from typing import Any

import torch

from .state_places import UNSET, HolderPlace, Place, SlotPlace, TensorPlace, TypePlace, version_of
from .state_walk import OF_MODULES, StateWalk, held_by

_VALUES = methodcaller("values")


class KeptState:
    """The state of a model, of the modules of its files, and of what both refer to."""

    def __init__(
        self,
        model: torch.nn.Module,
        modules: Sequence[ModuleType],
        weights: Mapping[str, torch.Tensor],
        rewritten: Iterable[str] = (),
        changed: dict[str, None] | None = None,
    ) -> None:
        """Note the state. `weights` are not copied: they hold the model's parameters and persistent buffers.

        `rewritten` are names of tensors that are put back after every request.
        """
        self.changed = {} if changed is None else changed
        """Names of what any request has changed, in the order in which it was noticed."""
        originals = {
            id(tensor): weights[name]
            for name, tensor in (*model.named_parameters(), *model.named_buffers())
            if name in weights and weights[name].dtype == tensor.dtype
        }
        walk = StateWalk(frozenset(module.__name__ for module in modules), originals)
        walk.value("self", model)
        for module in modules:
            walk.value(module.__name__, module)
        self._places = walk.places
        always = frozenset(rewritten)
        self._always = [place for place in walk.places if place.name in always]
        tensors = [place for place in walk.places if isinstance(place, TensorPlace)]
        self._counted, self._compared = ([p for p in tensors if p.counted is counted] for counted in (True, False))
        self._tensors = [place.tensor for place in self._counted]
        self._plain = [place.tensor for place in tensors if place.is_plain]
        at_once = [place for place in self._compared if place.bits]
        bits = [place.bits for place in at_once if place.bits]
        self._now, self._before = [now for now, _ in bits], [before for _, before in bits]
        self._aliased, self._memory = [place.tensor for place in at_once], [place.memory for place in at_once]
        classes = [place for place in walk.places if isinstance(place, TypePlace)]
        self._typed, self._types = [place.value for place in classes], [place.own for place in classes]
        slots = [place for place in walk.places if isinstance(place, SlotPlace) and place.before is not UNSET]
        self._slots = [place.read for place in slots]
        at_a_time = {id(place) for place in (*tensors, *classes, *slots)}
        others = [p for p in walk.places if id(p) not in at_a_time and not isinstance(p, HolderPlace)]
        self._others = [*(place for place in self._compared if not place.bits), *others]
        holders = [place.holder for place in walk.places if isinstance(place, HolderPlace)]
        self._empty, self._filled = [held for held in holders if not held], [held for held in holders if held]
        of_torch = [held for held in self._filled if isinstance(held, dict) and held.keys() >= OF_MODULES]
        # The attributes of a module of torch are read at once, without those that no call uses.
        names = [(*held_by(held), *(name for name in held if name not in OF_MODULES)) for held in of_torch]
        self._modules = [(itemgetter(*own), held) for own, held in zip(names, of_torch)]
        classes_of_files = [held for held in self._filled if isinstance(held, MappingProxyType)]
        whole = {id(held) for held in (*of_torch, *classes_of_files)}
        self._iterated = [held for held in self._filled if id(held) not in whole]
        self._mappings = [*(held for held in self._iterated if isinstance(held, dict)), *classes_of_files]
        self._usual: list[Place] = []
        """Places that earlier requests have changed. Put back, they are as they were noted."""
        self._note()

    def _note(self) -> None:
        """Note what `_is_changed` compares."""
        self._versions = list(map(version_of, self._tensors))
        self._addresses = list(map(torch.Tensor.data_ptr, self._plain))
        self._sizes = list(map(len, self._filled))
        self._objects = list(self._all_objects())

    def _all_objects(self) -> Iterator[Any]:
        """Return the objects that are held, and the keys of dicts; of a module of torch, what its calls use."""
        return chain(
            chain.from_iterable(self._iterated),
            chain.from_iterable(map(_VALUES, self._mappings)),
            chain.from_iterable([read(attributes) for read, attributes in self._modules]),
            [read() for read in self._slots],
        )

    def _is_changed(self) -> bool:
        """Whether any place is changed: one pass over all, because most requests change none."""
        try:
            return (
                list(map(version_of, self._tensors)) != self._versions
                or list(map(torch.Tensor.data_ptr, self._plain)) != self._addresses
                or any(self._empty)
                or list(map(len, self._filled)) != self._sizes
                or not all(map(is_, self._all_objects(), self._objects))
                or not all(map(is_, map(type, self._typed), self._types))
                or not all(map(torch.Tensor.is_set_to, self._aliased, self._memory))
                or not all(map(torch.equal, self._now, self._before))
                or any(place.is_changed() for place in self._others)
            )
        except Exception:  # noqa: BLE001 - an attribute was replaced, or a tensor's dtype; or a user's object fails
            return True

    def restore(self) -> bool:
        """Put back what a request has changed; returns whether all of it could be."""
        try:
            for place in self._always:
                place.restore()
            self._put_back(self._usual)
            if self._always or self._is_changed():
                put = self._put_back(self._places)
                self._usual += [
                    place for place in put if not isinstance(place, TensorPlace) and place not in self._usual
                ]
                self._note()
        except Exception:  # noqa: BLE001 - the code of the user's objects, or memory that is in use elsewhere
            return False
        return True

    def _put_back(self, places: Iterable[Place]) -> list[Place]:
        """Put back the places that are changed; returns them."""
        changed = [place for place in places if place.is_changed()]
        for place in changed:
            self.changed.update(dict.fromkeys(place.changed()))
            place.restore()
        return changed

    def unnoticed(self) -> list[str]:
        """Return the names of tensors whose elements differ, although nothing shows that they were written.

        Writing through `.data` or numpy is not noticed by `restore`.
        """
        return [place.name for place in self._counted if place.differs()]
