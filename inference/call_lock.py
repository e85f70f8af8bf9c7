"""Lock of an open archive's calls, which forks of the process respect."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from types import TracebackType


class CallLock:
    """A lock for a `with` statement. A fork has another one, which no thread holds.

    `enter_fork` is called in each fork, before it does anything else.
    """

    def __init__(self, enter_fork: Callable[[], object]) -> None:
        self._lock = threading.RLock()  # code of the user may fork the process within a call
        self._enter_fork = enter_fork
        _known.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release()

    def enter_fork(self) -> None:
        """Begin anew: the fork has no thread of its parent that could release the lock."""
        self._lock = threading.RLock()
        self._enter_fork()


_known: weakref.WeakSet[CallLock] = weakref.WeakSet()
_held: list[CallLock] = []
_one_fork = threading.RLock()


def _hold_all() -> None:
    _one_fork.acquire()
    _held[:] = sorted(_known, key=id)
    for one in _held:
        one.__enter__()


def _release_all() -> None:
    for one in _held:
        one.__exit__(None, None, None)
    _held.clear()
    _one_fork.release()


def _enter_fork() -> None:
    global _one_fork  # noqa: PLW0603 - the fork has another lock
    for one in _held:
        one.enter_fork()
    _held.clear()
    _one_fork = threading.RLock()


os.register_at_fork(before=_hold_all, after_in_parent=_release_all, after_in_child=_enter_fork)
