"""One trial: clients send their sessions while servers are killed under them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from .client import Client
from .disturbances import Disturber
from .expected import Expected
from .host import Host
from .model import Tagger
from .script import Script
from .tally import Tally

_LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class Trouble:
    """Faults that are injected into the servers."""

    kill_seconds: float
    """Seconds between two kills of a random worker."""
    restart: bool
    """Whether the server that is killed in the middle is started again."""
    hang_ups: float
    """The share of chunks whose client does not wait for the answer."""
    seed: int
    disturber: Disturber = field(default_factory=Disturber)


async def run_trial(
    model: Tagger, sessions: Sequence[tuple[Script, Expected]], hosts: Sequence[Host], trouble: Trouble
) -> Tally:
    """Send all sessions at once; the first host is killed when half of all answers are there."""
    tally = Tally()
    ports = [host.port for host in hosts]
    clients = [Client(model, script, expected, ports, tally, trouble.hang_ups).run() for script, expected in sessions]
    began = time.monotonic()
    half = sum(len(script.ends) for script, _ in sessions) // 2
    killers = [
        asyncio.create_task(_kill_workers(hosts, tally, trouble)),
        asyncio.create_task(_kill_server(hosts[0], tally, half, restart=trouble.restart)),
        asyncio.create_task(trouble.disturber.run(tally)),
    ]
    try:
        await asyncio.gather(*clients)
    finally:
        for killer in killers:
            killer.cancel()
        outcomes = await asyncio.gather(*killers, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    tally.seconds = time.monotonic() - began
    tally.replayed = sum(host.replayed() for host in hosts)
    return tally


async def _kill_workers(hosts: Sequence[Host], tally: Tally, trouble: Trouble) -> None:
    chance = random.Random(trouble.seed)
    while True:
        alive = [host for host in hosts if host.alive]
        if alive:
            host = chance.choice(alive)
            tally.worker_kills += await asyncio.to_thread(host.kill_worker, chance)
        await asyncio.sleep(trouble.kill_seconds)


async def _kill_server(host: Host, tally: Tally, answers: int, *, restart: bool) -> None:
    while tally.given < answers:  # noqa: ASYNC110 - counting need not know who waits for a number
        await asyncio.sleep(_LOOK_SECONDS)
    await asyncio.to_thread(host.kill)
    tally.server_kills += 1
    if restart:
        await asyncio.to_thread(host.start)
