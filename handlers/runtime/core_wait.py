"""Time for which the threads of this process were ready to run and waited for a core."""

from __future__ import annotations

from pathlib import Path

_TASKS = Path("/proc/self/task")


def waited_ms(tasks: Path = _TASKS) -> float:
    """Return the milliseconds that the process's threads have waited for a core, since each began.

    Linux counts them (`run_delay` in the `schedstat` of each thread). 0 if the system does not report it.
    """
    try:
        return sum(_run_delay_ns(thread / "schedstat") for thread in tasks.iterdir()) / 1e6
    except OSError:
        return 0.0


def _run_delay_ns(file: Path) -> int:
    """Nanoseconds of one thread; 0 if the thread has ended, or the system does not report it."""
    try:
        _, waited, *_ = file.read_text("ascii").split()
        return int(waited)
    except (OSError, ValueError):
        return 0
