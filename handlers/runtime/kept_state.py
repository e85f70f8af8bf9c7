"""State that a request leaves behind in a model's objects, and its return to what it was before.

A request may set attributes, fill buffers and grow lists. What the objects held when the archive was loaded is noted
once; after each request, what differs is put back. So every request is answered as the first one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import is_
from types import ModuleType
from typing import Any

import torch

from .state_places import HolderPlace, MappingPlace, Place, SlotPlace, TensorPlace, TypePlace, dict_of, version_of
from .state_walk import StateWalk

try:  # a number that Python keeps (PEP 509): it takes a tenth of the time, and leaves the objects alone
    from torch._C._dynamo.guards import dict_version
except ImportError:
    from .state_places import content_of as dict_version  # type: ignore[assignment,unused-ignore]

_TRIES = 3  # times that places are put back, before the model is made anew
_MOST_NAMES = 100


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
        bits = [place.bits for place in self._compared if place.bits]
        self._now, self._before = [now for now, _ in bits], [before for _, before in bits]
        aliased = [place for place in tensors if place.is_plain or place.bits]
        self._aliased, self._memory = [place.tensor for place in aliased], [place.memory for place in aliased]
        classes = [place for place in walk.places if isinstance(place, TypePlace)]
        self._typed, self._types = [place.value for place in classes], [place.own for place in classes]
        slots = [place for place in walk.places if isinstance(place, SlotPlace) and place.is_set]
        self._slots = [place.read for place in slots]
        at_a_time = {id(place) for place in (*tensors, *classes, *slots)}
        others = [p for p in walk.places if id(p) not in at_a_time and not isinstance(p, HolderPlace)]
        self._others = [*(place for place in self._compared if not place.bits), *others]
        mappings = [place for place in walk.places if isinstance(place, MappingPlace)]
        self._dict_places = [place for place in mappings if dict_of(place.holder) is not None]
        self._dicts = [held for place in mappings if (held := dict_of(place.holder)) is not None]
        versioned = set(map(id, self._dict_places))
        holders = [p for p in walk.places if isinstance(p, HolderPlace) and id(p) not in versioned]
        self._looks = [place.look for place in holders]
        self._lengths = [partial(place.kind.__len__, place.holder) for place in holders]
        owned = [place for place in mappings if place.owner is not None]
        self._owners, self._attributes = [place.owner for place in owned], [place.holder for place in owned]
        self._usual: list[Place] = []
        """Places, but dicts, that earlier requests have changed. Put back, they are as they were noted."""
        self._note()

    def _note(self) -> None:
        """Note what `restore` compares."""
        self._dict_versions = list(map(dict_version, self._dicts))
        self._versions = list(map(version_of, self._tensors))
        self._addresses = list(map(torch.Tensor.data_ptr, self._plain))
        self._sizes = [length() for length in self._lengths]
        self._objects = list(self._all_objects())

    def _all_objects(self) -> Iterator[Any]:
        """Return the objects that are held elsewhere than in a dict, and the keys of mappings that order their own."""
        return chain(chain.from_iterable([look() for look in self._looks]), [read() for read in self._slots])

    def _put_back_dicts(self) -> bool:
        """Put back the dicts into which anything was written, also while others were; returns whether it is done."""
        noted = self._dict_versions
        for _ in range(_TRIES):
            versions = list(map(dict_version, self._dicts))
            if versions == noted:
                return True
            changed = [index for index, version in enumerate(versions) if version != noted[index]]
            self._put_back([self._dict_places[index] for index in changed])
            for index in changed:
                noted[index] = dict_version(self._dicts[index])
        return False

    def _is_changed(self) -> bool:
        """Whether any place but a dict is changed: one pass over all, because most requests change none."""
        try:
            return (
                list(map(version_of, self._tensors)) != self._versions
                or list(map(torch.Tensor.data_ptr, self._plain)) != self._addresses
                or [length() for length in self._lengths] != self._sizes
                or not all(map(is_, self._all_objects(), self._objects))
                or not all(map(is_, map(type, self._typed), self._types))
                or not all(map(is_, map(vars, self._owners), self._attributes))
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
            if not self._put_back_dicts():
                return False
            return not (self._always or self._is_changed()) or self._put_back_all()
        except (Exception, SystemExit):  # noqa: BLE001 - the user's code, or memory that is in use elsewhere
            return False

    def _put_back_all(self) -> bool:
        """Put back all places, also those that a finaliser changes meanwhile; returns whether it is done."""
        for _ in range(_TRIES):
            put = self._put_back(self._places)
            if not put:
                self._note()
                return True
            self._usual += [place for place in put if not isinstance(place, TensorPlace) and place not in self._usual]
        return False

    def _put_back(self, places: Iterable[Place]) -> list[Place]:
        """Put back the places that are changed; returns them."""
        changed = [place for place in places if place.is_changed()]
        for place in changed:
            if len(self.changed) < _MOST_NAMES:  # keys may be those of a request
                self.changed.update(dict.fromkeys(place.changed()))
            place.restore()
        return changed

    def unnoticed(self) -> list[str]:
        """Return the names of tensors whose elements differ, although nothing shows that they were written.

        Writing through `.data` or numpy is not noticed by `restore`.
        """
        return [place.name for place in self._counted if place.differs()]
