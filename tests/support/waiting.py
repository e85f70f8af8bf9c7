"""Waiting for what another thread or process does."""

import time
from collections.abc import Callable


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until a condition holds; raises `AssertionError` if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)
