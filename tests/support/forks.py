"""Forks of this process, as data loaders make them."""

from collections.abc import Callable
from multiprocessing import get_context

SECONDS = 20


def forked(run: Callable[[], object]) -> Callable[[], bool]:
    """Start `run` in a fork. Returns a function that waits for it, kills it if it hangs, and says if it succeeded."""
    child = get_context("fork").Process(target=run)
    child.start()

    def has_succeeded() -> bool:
        child.join(SECONDS)
        child.kill()
        return child.exitcode == 0

    return has_succeeded


def in_fork(run: Callable[[], object]) -> bool:
    """Whether `run` succeeds in a fork."""
    return forked(run)()
