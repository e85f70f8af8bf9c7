"""Sessions of one model at serving time: the protocol of their source, and the bytes of carried values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple, Protocol

import torch

from ...bucketing.execute import Tensors
from ...bucketing.padding import item_bytes, torch_dtype
from ...bucketing.shapes import CarriedValue
from ...sessions.session import Session
from ..responses import RequestError


class StateSerializer:
    """The layout of one sequence's carried values as bytes: one after the other, as they are in memory.

    >>> from torchserve_neuron_lstm.bucketing.shapes import CarriedValue, TensorSpec
    >>> hidden = TensorSpec("h", "float32", ("batch", 2))
    >>> serializer = StateSerializer([CarriedValue(hidden, 0.0)])
    >>> serializer.size
    8
    >>> serializer.deserialize(serializer.serialize([torch.tensor([[1.0, 2.0], [3.0, 4.0]])]))
    (tensor([[1., 2.],
            [3., 4.]]),)
    """

    def __init__(self, carried: Sequence[CarriedValue]) -> None:
        self.specs = [value.spec for value in carried]
        self._widths = [prod(spec.item_sizes(1)) * item_bytes(torch_dtype(spec)) for spec in self.specs]
        self.size = sum(self._widths)
        """The number of bytes of one sequence."""

    def serialize(self, values: Sequence[torch.Tensor]) -> list[bytes]:
        """Return the bytes of each row of the carried values."""
        rows = len(values[0]) if values else 0
        whole = bytearray(max(1, rows * self.size))
        table = torch.frombuffer(whole, dtype=torch.uint8)[: rows * self.size].view(rows, self.size)
        start = 0
        for value, width in zip(values, self._widths):
            table[:, start : start + width] = value.reshape(rows, -1).contiguous().view(torch.uint8)
            start += width
        view = memoryview(whole)
        return [bytes(view[row * self.size : (row + 1) * self.size]) for row in range(rows)]

    def deserialize(self, states: Sequence[bytes]) -> Tensors:
        """Return the carried values of rows with these bytes. Raises `ValueError`: the bytes are not of this layout."""
        if {*map(len, states)} - {self.size}:
            raise ValueError(f"a state has {self.size} bytes, not {[len(state) for state in states]}")
        if not self.specs or not states:
            return tuple(torch.zeros(spec.sizes(len(states), 1), dtype=torch_dtype(spec)) for spec in self.specs)
        table = torch.frombuffer(bytearray().join(states), dtype=torch.uint8).view(len(states), self.size)
        values = []
        for spec, part in zip(self.specs, table.split_with_sizes(self._widths, 1)):
            # A copy: one row is contiguous as it is, at a place that another dtype may not have.
            own = part.clone(memory_format=torch.contiguous_format).view(torch_dtype(spec))
            values.append(own.view(len(states), *spec.item_sizes(1)))
        return tuple(values)


class SessionKey(NamedTuple):
    """The id and token by which a request names its session."""

    id: str
    token: str | None


class LoadedSession(NamedTuple):
    """A session as it was loaded; None if there is none."""

    session: Session | None
    revision: int | None = None
    damaged: bool = False
    """Whether there is a record that cannot be read: a start replaces it."""


class SessionUpdate(NamedTuple):
    """A session after a request, and the loaded one that it replaces."""

    id: str
    session: Session
    loaded: LoadedSession
    has_own_id: bool = True
    """Whether the id is the client's. Another one is unconfirmed until the client uses it."""
    client: str | None = None
    """The client, where the host names it."""

    @property
    def starts(self) -> bool:
        """Whether the session starts with the request."""
        return self.loaded.session is None


@dataclass(frozen=True)
class RevisionConflict:
    """Another request of the session was applied first: the decision on this one must be made again."""


class SessionSource(Protocol):
    """A source of the sessions of one model, which loads and saves them.

    What one inherits is for sessions that are not stored, and that are found by their id.
    """

    def load(self, keys: Sequence[SessionKey]) -> list[LoadedSession | RequestError]:
        """Load the session of each key; the ids are different."""

    def token(self, steps: int, state: bytes) -> str | None:
        """Return the token that the client sends with its next request; None: the id is enough."""
        return None

    def save(self, updates: Sequence[SessionUpdate]) -> list[RevisionConflict | RequestError | None]:
        """Save each session, or return why it is not saved; the ids are different."""
        return [None] * len(updates)

    def expired(self) -> int:
        """Return the number of idle sessions removed since the last call."""
        return 0

    def available(self) -> bool | None:
        """Whether sessions can be read and written now; None: there is no store."""
        return None
