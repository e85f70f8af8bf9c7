"""Progress of packaging on standard error: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

ProgressCallback = Callable[[int, int, str], None]
"""Function of the steps done, the number of steps, and a description of the last one."""


@contextmanager
def show_progress(title: str, console: Console, every_s: float = 0.0) -> Iterator[ProgressCallback]:
    """Show progress; plain lines are at least `every_s` seconds apart, so that short work prints nothing."""
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(title, total=None)
            yield lambda done, total, text: bar.update(
                task, completed=done, total=total, description=f"{title}: {text}"
            )
    else:
        yield plain_progress(title, console.print, every_s)


def plain_progress(title: str, say: Callable[[str], object], every_s: float) -> ProgressCallback:
    """Return a callback that reports progress as lines of text.

    >>> report = plain_progress("compile", print, every_s=0.0)
    >>> report(1, 12, "inductor 1 x 16 in 5.2 s")
    compile 1/12: inductor 1 x 16 in 5.2 s
    """
    last = time.monotonic()

    def report(done: int, total: int, text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= every_s:
            last = time.monotonic()
            say(f"{title} {done}/{total}: {text}")

    return report
