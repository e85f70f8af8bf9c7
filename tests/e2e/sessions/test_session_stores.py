"""Sessions over a real TorchServe while their store is damaged or gone."""

import sqlite3
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from one_partition import id_in_partition
from rest import Reply, assert_close, assert_refused, get

from torchserve_neuron_lstm.sessions.redis.shard_commands import hash_slot, partition_tags
from torchserve_neuron_lstm.sessions.session import store_key
from torchserve_neuron_lstm.sessions.settings import PARTITIONS

from .chunks_and_replies import cut, draw, told
from .streaming_server import Streaming

RECOVERY_SECONDS = 20


def assert_others_are_served(streaming: Streaming, model: str) -> None:
    frames = draw(5)
    reply = streaming.send(model, frames.tolist(), start="true", end="true")
    assert reply.status == 200, reply.body
    assert_close(reply.json["scores"], streaming.eager(frames))


def assert_unavailable(reply: Reply) -> None:
    assert assert_refused(reply, 503)["type"] == "StoreUnavailable"
    assert int(reply.headers["retry-after"]) >= 1


def recovered(streaming: Streaming, model: str, body: object, headers: Mapping[str, object]) -> Reply:
    deadline = time.monotonic() + RECOVERY_SECONDS
    while (reply := streaming.send(model, body, **headers)).status == 503 and time.monotonic() < deadline:
        time.sleep(0.1)
    return reply


def ready(streaming: Streaming, model: str) -> tuple[int, bool]:
    """The status of a probe, and whether the model has its store; the answer names no path of the host."""
    reply = get(streaming.server.inference, f"/predictions/{model}", {"describe": "True"})
    assert str(streaming.sessions.parent) not in reply.body.decode()
    return reply.status, reply.json["readiness"]["store"]


def test_a_damaged_record_is_told_to_its_own_session_alone(streaming: Streaming) -> None:
    frames = draw(6)
    damaged, sound = (told(streaming.send("disk", frames[:3].tolist()))[0] for _ in range(2))
    with closing(sqlite3.connect(streaming.sessions / "disk.sessions", timeout=30)) as connection, connection:
        (record,) = connection.execute(
            "SELECT record FROM session WHERE key = ?", (store_key(damaged, "disk"),)
        ).fetchone()
        changed = record[:-1] + bytes([record[-1] ^ 1])
        connection.execute(
            "UPDATE session SET record = ?, revision = revision - 1 WHERE key = ?",
            (changed, store_key(damaged, "disk")),
        )
    with ThreadPoolExecutor(2) as clients:
        piece = frames[3:].tolist()
        refused, answered = clients.map(lambda session: streaming.send("disk", piece, id=session), (damaged, sound))

    assert assert_refused(refused, 500)["type"] == "SessionDamaged"
    assert told(answered) == (sound, 6)
    assert_close(answered.json["scores"], streaming.eager(frames)[3:])
    told(streaming.send("disk", piece))


def test_a_damaged_store_is_told_and_replaced_without_a_restart(streaming: Streaming) -> None:
    frames = draw(4)
    session, _ = told(streaming.send("disk", frames.tolist()))
    before = streaming.server.worker_pids("disk")
    file = streaming.sessions / "disk.sessions"
    assert file.stat().st_mode & 0o077 == 0
    for path in streaming.sessions.glob("disk.sessions*"):
        path.unlink()
    garbage = file.with_name("garbage")
    garbage.write_bytes(b"\x00garbage " * 5000)
    garbage.replace(file)

    for headers in ({"id": session, "step": 4}, {"start": "true"}):
        for _ in range(3):
            assert_unavailable(streaming.send("disk", frames.tolist(), **headers))
            assert_others_are_served(streaming, "disk")
    for path in streaming.sessions.glob("disk.sessions*"):
        path.unlink()
    assert_refused(recovered(streaming, "disk", frames.tolist(), {"id": session, "step": 4}), 410)
    session, _ = told(streaming.send("disk", frames.tolist()))
    told(streaming.send("disk", frames.tolist(), id=session, step=4))
    assert streaming.server.worker_pids("disk") == before


def test_sessions_go_on_when_their_server_is_back(streaming: Streaming) -> None:
    frames = draw(9)
    pieces = cut(frames, 3, 6)
    session, _ = told(streaming.send("redis", pieces[0]))
    before = streaming.server.worker_pids("redis")
    for number in (1, 2):
        streaming.redis.kill()
        for _ in range(3):
            assert_unavailable(streaming.send("redis", pieces[number], id=session, step=3 * number))
            assert_others_are_served(streaming, "redis")
        assert ready(streaming, "redis") == (503, False)
        streaming.redis.start()
        reply = recovered(streaming, "redis", pieces[number], {"id": session, "step": 3 * number})
        assert told(reply) == (session, 3 * number + 3)
        assert_close(reply.json["scores"], streaming.eager(frames)[3 * number : 3 * number + 3])

    assert ready(streaming, "redis") == (200, True)
    assert streaming.server.worker_pids("redis") == before


def test_sessions_of_other_shards_go_on_while_one_is_gone(streaming: Streaming) -> None:
    frames = draw(9)
    pieces = cut(frames, 3, 6)
    names = [id_in_partition("session", "cluster", partition) for partition in range(PARTITIONS)]
    tags = partition_tags("cluster")

    def send(number: int, **headers: object) -> list[Reply]:
        with ThreadPoolExecutor(PARTITIONS) as clients:
            sent = [clients.submit(streaming.send, "cluster", pieces[number], id=name, **headers) for name in names]
        return [one.result() for one in sent]

    for reply in send(0, start="true"):
        told(reply)
    killed = streaming.cluster.primaries[1]
    is_gone = [streaming.cluster.owner(hash_slot(tag)) is killed for tag in tags]
    killed.kill()
    replies = send(1, step=3)
    again = send(1, step=3)

    for gone, reply, repeated in zip(is_gone, replies, again, strict=True):
        if gone:
            assert_unavailable(reply)
            assert_unavailable(repeated)
        else:
            assert_close(reply.json["scores"], streaming.eager(frames)[3:6])
            assert (repeated.status, repeated.body) == (200, reply.body)
    assert 0 < sum(is_gone) < PARTITIONS
    assert ready(streaming, "cluster") == (200, True)
    killed.start()
    for number in (1, 2):
        for name in names:
            reply = recovered(streaming, "cluster", pieces[number], {"id": name, "step": 3 * number})
            assert told(reply) == (name, 3 * number + 3)
            assert_close(reply.json["scores"], streaming.eager(frames)[3 * number : 3 * number + 3])
