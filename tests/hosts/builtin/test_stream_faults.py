"""500 streams while workers are killed and connections cut: no chunk is lost, answered wrongly or applied twice."""

import asyncio
import json
import random
import secrets
from pathlib import Path

import numpy as np
import psutil
import pytest
from builtin_server import Server, serving
from host_archives import Archives
from mixed_requests import frames_of
from session_service import ID, START, STEP
from waiting import wait_for
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from torchserve_neuron_lstm import open_archive

STREAMS, CHUNKS, KILLED = 500, 100, 10
_AGAIN = {409, 500, 503, 504}
"""Statuses after which a chunk is sent again; 409: that of a former connection is in work."""


async def streamed(server: Server, frames: np.ndarray, rng: random.Random) -> list[list[float]]:
    """Send one timestep after the other, those without an answer again, and cut some connections."""
    session, scores = secrets.token_urlsafe(18), list[list[float]]()
    while len(scores) < CHUNKS:
        begin = f"{STEP}={len(scores)}" if scores else f"{START}=true"
        url = f"ws://127.0.0.1:{server.http}/models/stream/stream?{ID}={session}&{begin}"
        try:
            async with connect(url, proxy=None, open_timeout=60, close_timeout=1) as stream:
                while len(scores) < CHUNKS:
                    await stream.send(json.dumps(frames[len(scores)][None].tolist()))
                    if rng.random() < 0.01:
                        stream.transport.abort()
                    answer = json.loads(await stream.recv())
                    if "code" in answer:
                        assert answer["code"] in _AGAIN, answer
                        break
                    scores += answer["scores"]
                    assert answer[STEP] == len(scores)
        except (WebSocketException, OSError, EOFError):
            await asyncio.sleep(rng.random())
    return scores


def kill_workers(server: Server) -> None:
    for count in range(1, KILLED + 1):
        children = psutil.Process(server.command.process.pid).children()
        random.choice([one for one in children if "spawn_main" in " ".join(one.cmdline())]).kill()
        wait_for(lambda: server.command.text.count("A worker ended") >= count)  # noqa: B023 - called at once


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_each_chunk_of_each_stream_is_applied_once(archives: Archives, tmp_path: Path) -> None:
    sequences = [frames_of(CHUNKS, seed) for seed in range(STREAMS)]

    async def run(server: Server) -> list[list[list[float]]]:
        killing = asyncio.create_task(asyncio.to_thread(kill_workers, server))
        found = await asyncio.gather(
            *(streamed(server, one, random.Random(seed)) for seed, one in enumerate(sequences))
        )
        await killing
        return found

    with serving(tmp_path, archives.path("stream"), "--workers", "2") as server:
        found = asyncio.run(run(server))
    with open_archive(archives.path("stream"), threads=1) as model:
        for frames, scores in zip(sequences, found, strict=True):
            session = model.session()
            pieces = [session.send(frames[at : at + 16], as_numpy=True) for at in range(0, CHUNKS, 16)]
            np.testing.assert_allclose(np.array(scores), np.concatenate(pieces), atol=1e-5)  # type: ignore[arg-type]
