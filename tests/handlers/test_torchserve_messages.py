"""TorchServe's messages, read from a worker's socket in blocks."""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from socket import socket
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ts.protocol import otf_message_handler

from torchserve_neuron_lstm.handlers.torchserve_messages import ReadAhead, read_in_blocks

LONG = st.sampled_from([bytes(range(256)) * times for times in (255, 256, 300, 600)])
BODIES = st.lists(st.binary(max_size=300) | LONG, min_size=1, max_size=4)


class Pieces(socket):
    """A connection on which bytes arrive in pieces of any size; it counts the calls."""

    def __init__(self, data: bytes, sizes: Sequence[int]) -> None:
        super().__init__()
        self.close()
        self.data = data
        self.sizes = iter(sizes)
        self.calls = 0

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        self.calls += 1
        length = min(size, next(self.sizes, size))
        taken, self.data = self.data[:length], self.data[length:]
        return taken


def text(value: bytes) -> bytes:
    """A text of TorchServe's protocol: its length, then its bytes."""
    return struct.pack("!i", len(value)) + value


def message(bodies: Sequence[bytes]) -> bytes:
    """A batch as TorchServe's frontend sends it, with five headers for each request."""
    end = struct.pack("!i", -1)
    headers = b"".join(text(b"header-%d" % index) + text(b"value") for index in range(5)) + end
    rows = [
        text(b"id") + headers + text(b"body") + text(b"application/octet-stream") + text(body) + end for body in bodies
    ]
    return b"I" + b"".join(rows) + end


@pytest.fixture
def in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """TorchServe's module as the handler leaves it."""
    monkeypatch.setattr(otf_message_handler, "_retrieve_buffer", otf_message_handler._retrieve_buffer)
    read_in_blocks(otf_message_handler)


def as_torchserve_reads(data: bytes) -> Any:
    """The message as TorchServe's own reader finds it."""
    return otf_message_handler.retrieve_msg(Pieces(data, []))


@given(batches=st.lists(BODIES, min_size=1, max_size=3), sizes=st.lists(st.integers(1, 100_000), max_size=30))
def test_messages_are_those_that_torchserve_reads(batches: list[list[bytes]], sizes: list[int]) -> None:
    """However the bytes arrive, and also if a block ends in the middle of the next message."""
    own = otf_message_handler._retrieve_buffer
    expected = [as_torchserve_reads(message(bodies)) for bodies in batches]
    connection = Pieces(b"".join(map(message, batches)), sizes)
    read_in_blocks(otf_message_handler)
    try:
        assert [otf_message_handler.retrieve_msg(connection) for _ in batches] == expected
    finally:
        otf_message_handler._retrieve_buffer = own


@pytest.mark.usefixtures("in_blocks")
def test_a_batch_takes_one_call_of_the_system() -> None:
    """TorchServe's own reader makes hundreds."""
    connection = Pieces(message([b"[1, 2, 3]"] * 32), [])

    command, rows = otf_message_handler.retrieve_msg(connection)

    assert (command, len(rows), connection.calls) == (b"I", 32, 1)


def test_a_long_body_is_not_read_beyond_its_end() -> None:
    """A block that is longer than what is missing would be copied again."""
    connection = Pieces(bytes(200_000) + b"rest", [])
    read = ReadAhead(otf_message_handler._retrieve_buffer)

    assert read(connection, 200_000) == bytes(200_000)
    assert connection.data == b"rest"


@pytest.mark.usefixtures("in_blocks")
def test_the_worker_ends_as_before_when_the_server_closes_the_connection() -> None:
    """It exits with 0, also in the middle of a message."""
    for data in (b"", message([b"[1, 2, 3]"])[:50]):
        with pytest.raises(SystemExit) as exited:
            otf_message_handler.retrieve_msg(Pieces(data, []))
        assert exited.value.code == 0


def test_bytes_of_another_connection_are_forgotten() -> None:
    """A server that connects again begins a new message."""
    read = ReadAhead(otf_message_handler._retrieve_buffer)
    assert read(Pieces(b"abcd", []), 2) == b"ab"
    assert read(Pieces(b"efgh", []), 3) == b"efg"


def test_another_torchserve_goes_on_as_it_does(caplog: pytest.LogCaptureFixture) -> None:
    """A line of the log says so."""

    def other(conn: object, length: int, timeout: float) -> bytearray:
        raise AssertionError

    for module in (SimpleNamespace(__name__="ts"), SimpleNamespace(__name__="ts", _retrieve_buffer=other)):
        before = dict(vars(module))
        with caplog.at_level(logging.INFO):
            read_in_blocks(module)
        assert vars(module) == before
        assert "read one value at a time" in caplog.text
        caplog.clear()


@pytest.mark.usefixtures("in_blocks")
def test_a_second_model_of_the_worker_changes_nothing_more() -> None:
    """The reader is replaced once, so that no byte is lost between two of them."""
    first = otf_message_handler._retrieve_buffer
    read_in_blocks(otf_message_handler)
    assert otf_message_handler._retrieve_buffer is first
