"""Disturbances of a running server: its disk, its clock, its Redis server, its file of sessions.

Nothing of the machine is changed. Two libraries are loaded into the server's processes before the C library: one fails
calls on the store's files, the other one adds seconds to the wall clock. Files say what they do.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import failing_files
from failing_files import Fault

from torchserve_neuron_lstm.backends import cpp_compiler

from .archive import NAME
from .tally import Tally

TRUNCATED = "file truncated"
_HOUR = 3600
_SECONDS = 3.0
"""How long a disturbance lasts, and how long nothing is disturbed after it."""
_PAUSE_SECONDS = 5.0
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
        clock = self.work / "clock.so"
        flags = ("-std=c++17", "-O1", "-fPIC", "-shared", str(_CLOCK), "-o", str(clock), "-ldl")
        subprocess.run([cpp_compiler.compiler(), *flags], check=True)
        self._set_disk(Fault.NONE)
        self._set_clock(0)
        return {
            "LD_PRELOAD": f"{failing_files.build(self.work)} {clock}",
            "FAILING_FILES_CONTROL": str(self.work / "disk"),
            "FAILING_FILES_BELOW": str(self.sessions),
            "CHAOS_CLOCK": str(self.work / "clock"),
        }

    def disturbances(self) -> dict[str, Disturbance]:
        """All of them, by their names in the report."""
        return {
            "disk full": lambda: self._disk(Fault.FULL),
            TRUNCATED: self._truncate,
            "clock ahead": lambda: self._clock(_HOUR),
            "disk read-only": lambda: self._disk(Fault.READ_ONLY),
            "clock behind": lambda: self._clock(-_HOUR),
        }

    async def _disk(self, fault: Fault) -> None:
        self._set_disk(fault)
        await asyncio.sleep(_SECONDS)
        self._set_disk(Fault.NONE)

    async def _clock(self, seconds: int) -> None:
        self._set_clock(seconds)
        await asyncio.sleep(_SECONDS)
        self._set_clock(0)

    async def _truncate(self) -> None:
        """Cut the file in the middle, and move it away, as the message of the server tells its operator."""
        file = self.sessions / f"{NAME}.sessions"
        os.truncate(file, file.stat().st_size // 2)
        await asyncio.sleep(_SECONDS)
        for one in (file, file.with_name(f"{file.name}-wal"), file.with_name(f"{file.name}-shm")):
            if one.exists():
                one.rename(self.work / one.name)

    def _set_disk(self, fault: Fault) -> None:
        (self.work / "disk").write_text(str(int(fault)))

    def _set_clock(self, seconds: int) -> None:
        (self.work / "clock").write_text(str(seconds))


def redis_pause(pid: int) -> Mapping[str, Disturbance]:
    """A Redis server that answers no client for five seconds."""

    async def pause() -> None:
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            os.kill(pid, signal.SIGCONT)

    return {"Redis paused": pause}


@dataclass(frozen=True)
class Disturber:
    """One disturbance after the other, for as long as a trial runs."""

    disturbances: Mapping[str, Disturbance] = field(default_factory=dict)

    async def run(self, tally: Tally) -> None:
        """Make each of them repeatedly; the file is truncated only once."""
        left = dict(self.disturbances)
        while left:
            for name, disturb in list(left.items()):
                await asyncio.sleep(_SECONDS)
                takes_states = name == TRUNCATED  # at its beginning, and with the file at its end
                tally.states_gone += takes_states
                await disturb()
                tally.states_gone += takes_states
                tally.disturbances[name] += 1
            left.pop(TRUNCATED, None)
