"""Whether this process may run programs on the CPU that were compiled for a device that is not there.

They run from the text that their compiler was given, so the answers are the model's, and the speed is torch's.
Packaging allows it, to hold such programs against the model where no device is at hand. On a host it is allowed by hand
alone: a server that lacks its device is a mistake, and must not look as if it worked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

VARIABLE = "NEURON_LSTM_STAND_IN"
_CPU = "cpu"


def emulation_enabled() -> bool:
    """Whether the environment says so."""
    return os.environ.get(VARIABLE) == _CPU


@contextmanager
def enable_emulation() -> Iterator[None]:
    """In it, it is; for processes that are started in it too."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = _CPU
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
