"""Sessions that go on while a cluster is disturbed, and until it was disturbed as often as wanted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ..client import Client, Patience
from ..expected import Expected
from ..model import Tagger
from ..script import Script
from ..tally import Tally

_PATIENCE = Patience(answer=30.0, chunk=300.0)
"""A node that ended without warning is noticed late, and a replica on another one starts slowly on a busy machine."""
_REPORT_SECONDS = 0.5


class LoadTrouble(Protocol):
    """Disturbances beside the load."""

    @property
    def enough(self) -> bool:
        """Whether there were as many as wanted."""

    async def make(self, tally: Tally) -> None:
        """Make disturbances until it is cancelled."""


async def run_load(
    model: Tagger,
    sessions: Sequence[tuple[Script, Expected]],
    port: int,
    hang_ups: float,
    trouble: LoadTrouble,
    progress: Callable[[Tally], object],
) -> tuple[Tally, int]:
    """Send all sessions at once, each again under another id until there was enough trouble.

    Returns the tally and the number of sessions that were begun. An error of `trouble` ends the load.
    """
    tally = Tally()
    began = time.monotonic()
    beside = [asyncio.create_task(trouble.make(tally)), asyncio.create_task(_report(tally, progress))]
    clients = [
        asyncio.create_task(_go_on(Client(model, script, expected, [port], tally, hang_ups, _PATIENCE), trouble))
        for script, expected in sessions
    ]
    load = asyncio.gather(*clients)
    try:
        running: set[asyncio.Future[Any]] = {load, *beside}
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in beside:
            if task in done:
                task.result()  # its error: it does not end by itself
        begun = sum(await load)
    finally:
        await _end([*beside, *clients])
        await asyncio.gather(load, return_exceptions=True)
    tally.seconds = time.monotonic() - began
    return tally, begun


async def _go_on(client: Client, trouble: LoadTrouble) -> int:
    """Send the session repeatedly until there was enough trouble; returns how often it was started."""
    begun = 0
    while not (begun and trouble.enough):
        await replace(client, script=replace(client.script, id=f"{client.script.id}-{begun}")).run()
        begun += 1
    return begun


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks until they have ended: one whose answer came at that moment goes on."""
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=1.0)


async def _report(tally: Tally, progress: Callable[[Tally], object]) -> None:
    while True:
        progress(tally)
        await asyncio.sleep(_REPORT_SECONDS)
