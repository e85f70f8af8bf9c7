"""The load: all clients at once, while the server's processes are read."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from chaos.connection import Connection

from .client import Client, Supply
from .readings import Reading, read_process
from .tally import Tally

_ANSWER_SECONDS = 60.0
"""Seconds to wait for an answer, as long as the server's `responseTimeout`."""
_READINGS = 600
"""Readings of a short run; a long one is read every second."""


@dataclass
class Observed:
    """Results of a run."""

    tally: Tally = field(default_factory=Tally)
    readings: dict[str, list[Reading]] = field(default_factory=dict)
    """Readings of each process, by its name."""
    seconds: float = 0.0
    """Seconds until the last answer."""


async def run_load(
    port: int,
    supply: Supply,
    clients: int,
    seconds: float,
    processes: Mapping[str, int],
    progress: Callable[[float, Tally], object],
) -> Observed:
    """Send requests for `seconds` seconds, and read `processes`, process ids by name.

    `progress` is called after each reading, with the seconds so far.
    """
    observed = Observed(readings={name: [] for name in processes})
    began = time.monotonic()
    with ExitStack() as stack:
        connections = [stack.enter_context(closing(Connection(port, _ANSWER_SECONDS))) for _ in range(clients)]
        senders = [
            Client(port, connection, supply, observed.tally, random.Random(number)).run(
                lambda: time.monotonic() - began < seconds
            )
            for number, connection in enumerate(connections)
        ]
        reader = asyncio.create_task(_read(observed, processes, seconds, progress))
        await asyncio.gather(reader, *senders)
    observed.seconds = time.monotonic() - began
    return observed


async def _read(
    observed: Observed, processes: Mapping[str, int], seconds: float, progress: Callable[[float, Tally], object]
) -> None:
    """Read every process until the end of the run; one that has ended has no further readings."""
    interval = min(1.0, seconds / _READINGS)
    began = time.monotonic()
    while (elapsed := time.monotonic() - began) < seconds:
        for name, pid in processes.items():
            reading = read_process(pid, elapsed)
            if reading is not None:
                observed.readings[name].append(reading)
        progress(elapsed, observed.tally)
        await asyncio.sleep(interval)
