"""Faults of a running server: its processes, its disk, its clock, its file of sessions, its Redis server.

Nothing of the machine is changed. Two libraries are loaded into the server's processes before the C library: one fails
calls on the store's files, the other one adds seconds to the wall clock. Files say what they do.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from failing_files import Fault, build

from .bad_requests import STREAM
from .checks import Tally
from .hosts import Host

WORKERS, SERVERS, TRUNCATED = "workers killed", "servers killed", "file truncated"
_SECONDS = 3.0
"""Duration of a fault, and of the pause after it."""
_PAUSE_SECONDS = 5.0
_LATE_SECONDS = 600.0
"""The longest time for which sessions go on because there were too few faults."""
_CLOCK = Path(__file__).with_name("clock.cpp")
Disturbance = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class HostFaults:
    """Faults of the disk and of the clock of a server on this machine."""

    work: Path
    """A folder for the libraries, and for the files that control them."""
    sessions: Path
    """The folder of the store."""

    def environment(self) -> dict[str, str]:
        """Compile the libraries, and return the environment of a server with them."""
        self._write("disk", Fault.NONE)
        self._write("clock", 0)
        return {
            "LD_PRELOAD": f"{build(self.work)} {build(self.work, _CLOCK)}",
            "FAILING_FILES_CONTROL": str(self.work / "disk"),
            "FAILING_FILES_BELOW": str(self.sessions),
            "STRESS_CLOCK": str(self.work / "clock"),
        }

    def disturbances(self) -> dict[str, Disturbance]:
        """Return all of them, by their names in the report."""
        return {
            "disk full": lambda: self._for_a_while("disk", Fault.FULL),
            TRUNCATED: self._truncate,
            "clock ahead": lambda: self._for_a_while("clock", 3600),
            "disk read-only": lambda: self._for_a_while("disk", Fault.READ_ONLY),
            "clock behind": lambda: self._for_a_while("clock", -3600),
        }

    async def _for_a_while(self, control: str, value: int) -> None:
        self._write(control, value)
        await asyncio.sleep(_SECONDS)
        self._write(control, 0)

    async def _truncate(self) -> None:
        """Cut the file in the middle, and move it away, as the message of the server tells its operator."""
        file = self.sessions / f"{STREAM}.sessions"
        os.truncate(file, file.stat().st_size // 2)
        await asyncio.sleep(_SECONDS)
        for path in (file, file.with_name(f"{file.name}-wal"), file.with_name(f"{file.name}-shm")):
            if path.exists():
                path.rename(self.work / path.name)

    def _write(self, control: str, value: int) -> None:
        (self.work / control).write_text(str(int(value)))


def redis_pause(pid: int) -> dict[str, Disturbance]:
    """Return a Redis server's pause: it answers no client for five seconds."""

    async def pause() -> None:
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            os.kill(pid, signal.SIGCONT)

    return {"Redis paused": pause}


async def disturb(disturbances: Mapping[str, Disturbance], tally: Tally) -> None:
    """Make one disturbance after the other, repeatedly; the file is truncated only once."""
    waiting = dict(disturbances)
    while waiting:
        for name, make in list(waiting.items()):
            await asyncio.sleep(_SECONDS)
            takes_states = name == TRUNCATED  # at its beginning, and with the file at its end
            tally.states_gone += takes_states
            await make()
            tally.states_gone += takes_states
            tally.faults[name] += 1
        waiting.pop(TRUNCATED, None)


async def kill_workers(hosts: Sequence[Host], tally: Tally, seconds: float, chance: random.Random) -> None:
    """Kill a random worker, in any state, again and again: some seconds after the first answer since the last kill."""
    while True:
        right, alive = tally.good_right, [host for host in hosts if host.server]
        if alive:
            tally.faults[WORKERS] += await asyncio.to_thread(chance.choice(alive).kill_worker, chance)
        while tally.good_right == right:  # noqa: ASYNC110 - on a busy machine a worker may take longer to start
            await asyncio.sleep(0.1)
        await asyncio.sleep(seconds)


async def kill_server(host: Host, tally: Tally, after: float, *, restart: bool) -> None:
    """Kill a whole server after some seconds, and start it again if no other one serves its sessions."""
    await asyncio.sleep(after)
    await asyncio.to_thread(host.close)
    tally.faults[SERVERS] += 1
    if restart:
        await asyncio.to_thread(host.start)


def until_enough(tally: Tally, needed: Mapping[str, int], seconds: float) -> Callable[[], bool]:
    """Return whether a load goes on: for so many seconds, and until each fault was made as often as needed."""
    began = time.monotonic()

    def goes_on() -> bool:
        elapsed = time.monotonic() - began
        enough = all(tally.faults[name] >= count for name, count in needed.items())
        return elapsed < seconds or (not enough and elapsed < seconds + _LATE_SECONDS)

    return goes_on
