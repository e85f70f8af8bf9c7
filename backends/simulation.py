"""Device emulation: whether programs of a missing device may run on the CPU.

They run from the source that their compiler was given: the outputs are the model's, the speed is torch's. Packaging
enables it to verify such programs without the device. On a host only its operator enables it: a server whose device is
missing is misconfigured, and must fail.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

VARIABLE = "NEURON_LSTM_STAND_IN"
_CPU = "cpu"


def emulation_enabled() -> bool:
    """Whether the environment enables emulation."""
    return os.environ.get(VARIABLE) == _CPU


@contextmanager
def enable_emulation() -> Iterator[None]:
    """Enable emulation within the context, also for processes that are started in it."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = _CPU
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
