"""Stores at an address where no Redis server replies, or where a call ends between two replies."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis.connection import Connection
from redis_server import RedisServer, running, server_programs
from store_calls import begin, read, write

from torchserve_neuron_lstm.sessions import store as interface
from torchserve_neuron_lstm.sessions.store import RecordUpdate, StoreFullError, StoreUnavailableError, Written

from .redis_stores import MakeStore

REPLIES = [
    *(b"+OK", b":1", b":abc", b"$abc", b"*abc", b"$-5", b"*0", b"*-1", b"$-1", b"*1\r\n+x", b"*3\r\n:1\r\n:2\r\n:3"),
    *(b"-MOVED", b"-MOVED 1", b"-MOVED x y", b"-ASK", b"-ASK 1 :", b"-\xff\xfe", b"+\xff\xfe", b"+QUEUED"),
    *(b"HTTP/1.1 400 Bad Request", b"*1\r\n*3\r\n:0\r\n:16383\r\n*0", b"*1\r\n*3\r\n+a\r\n+b\r\n+c", b""),
]


@contextmanager
def answering(reply: bytes, pause: float = 0.0) -> Iterator[str]:
    """A server of one reply; with a `pause` in seconds, it sends byte by byte."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

        def answer(connection: socket.socket) -> None:
            with connection:
                try:
                    while connection.recv(65536):
                        replies = (reply + b"\r\n") * 40
                        for part in [replies] if pause == 0 else map(bytes, zip(replies)):
                            connection.sendall(part)
                            time.sleep(pause)
                except OSError:
                    return

        threading.Thread(target=serve, daemon=True).start()
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("reply", "kind", "advice"),
    [
        (b"-LOADING Redis is loading the dataset", StoreUnavailableError, "after which requests are answered"),
        (b"-READONLY You can't write against a read only replica.", StoreUnavailableError, "address of the primary"),
        (b"-OOM command not allowed when used memory > 'maxmemory'.", StoreFullError, "give the server more memory"),
        (b"-ERR Error running script: -READONLY You can't write", StoreUnavailableError, "address of the primary"),
        (b"-MISCONF Errors writing to the AOF file", StoreUnavailableError, "Errors writing to the AOF file"),
        (b"-MASTERDOWN Link with MASTER is down", StoreUnavailableError, "Link with MASTER is down"),
        (b"-BUSY Redis is busy running a script.", StoreUnavailableError, "busy running a script"),
    ],
)
def test_a_refusal_of_the_server_says_what_to_do(
    store_on_server: MakeStore, reply: bytes, kind: type[Exception], advice: str
) -> None:
    with answering(reply) as url:
        store = store_on_server(url, timeout_seconds=0.2)
        for call in (lambda: store.read(["a"]), lambda: store.write([RecordUpdate("a", b"record", None)])):
            found: object
            try:
                (found,) = call()
            except StoreUnavailableError as error:
                found = error
            assert type(found) is kind
            assert advice in str(found)


@pytest.mark.parametrize("cluster", [False, True], ids=["server", "cluster"])
def test_a_server_that_sends_byte_by_byte_takes_the_time_limit_once(store_on_server: MakeStore, cluster: bool) -> None:
    with answering(b"$9\r\nabcdefghi", pause=0.15) as url:
        store = store_on_server(url, timeout_seconds=0.2, cluster=cluster)
        began = time.monotonic()
        with pytest.raises(StoreUnavailableError, match=r"did not answer within 0\.2 seconds"):
            store.totals()
    assert time.monotonic() - began < 1.5


@pytest.mark.few(20)
@pytest.mark.parametrize("cluster", [False, True], ids=["server", "cluster"])
@pytest.mark.parametrize("reply", REPLIES, ids=repr)
def test_what_is_no_redis_is_an_unavailable_store(store_on_server: MakeStore, reply: bytes, cluster: bool) -> None:
    with answering(reply) as url:
        store = store_on_server(url, timeout_seconds=0.2, cluster=cluster)
        update = RecordUpdate("a", b"record", None)
        for call in (lambda: store.read(["a", "b"]), lambda: store.write([update]), store.totals):
            try:
                found = call()
            except StoreUnavailableError:
                continue
            assert isinstance(found, list)
            assert not any(isinstance(one, (Written, interface.StoredRecord)) for one in found)


def test_a_call_that_is_interrupted_leaves_no_reply_to_the_next_one(
    store_on_server: MakeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C may come after the first of three replies; the next call does not read the second one."""
    with running(RedisServer(next(iter(server_programs().values())), tmp_path)) as server:
        store = store_on_server(server.url)
        begin(store, "a", "b")
        read_response, replies = Connection.read_response, 0

        def interrupted(self: Connection, *given: object, **named: object) -> object:
            nonlocal replies
            replies += 1
            if replies == 2:
                raise KeyboardInterrupt
            return read_response(self, *given, **named)

        with monkeypatch.context() as patch:
            patch.setattr(Connection, "read_response", interrupted)
            with pytest.raises(KeyboardInterrupt):
                store.read(["a"])

        write(store, "b", b"next")
        assert read(store, "b") == b"next"
