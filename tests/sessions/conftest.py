"""The stores that all promises are tried on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest
from memory_store import Clock

from torchserve_neuron_lstm.sessions.disk import DiskStore
from torchserve_neuron_lstm.sessions.store import Limits, Store


class Place(Protocol):
    """Where stores lie: those of one model see the same sessions."""

    def __call__(self, limits: Limits, clock: Clock, model: str = "tagger") -> Store:
        """One more store object."""


Places = Callable[[], Place]
"""A new, empty one with every call."""


@pytest.fixture(params=["disk"], scope="session")
def places(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Places:
    """Of one kind of store after the other."""
    return lambda: _on_disk(tmp_path_factory.mktemp("sessions"))


def _on_disk(directory: Path) -> Place:
    return lambda limits, clock, model="tagger": DiskStore(directory, model, limits, clock)
