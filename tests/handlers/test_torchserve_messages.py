import logging
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from socket import socket
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest
from torchserve_neuron_lstm.handlers.responses import RequestError
from torchserve_neuron_lstm.handlers.torchserve_messages import ReadAhead, read_in_blocks, read_server_properties


def own_module(name: str) -> ModuleType:
    """A copy of a module of TorchServe. Other tests of the process may have put our readers into the module itself."""
    spec = find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


otf_message_handler = own_module("ts.protocol.otf_message_handler")
LONG = st.sampled_from([bytes(range(256)) * times for times in (255, 256, 300, 600)])
JSON = st.sampled_from([b"[1, 2, 3]", b'{"ids": [1]}', b""])
BODIES = st.lists(st.binary(max_size=300) | LONG | JSON, min_size=1, max_size=4)


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
    """A batch as TorchServe's frontend sends it: requests with 0, 5 or 10 headers and one or two inputs."""
    end = struct.pack("!i", -1)
    rows = []
    for place, body in enumerate(bodies):
        headers = b"".join(text(b"header-%d" % index) + text(b"value") for index in range(5 * (place % 3))) + end
        content_type = b"application/json" if body[:1] in b"[{" else b"application/octet-stream"
        inputs = b"".join(text(b"body%d" % index) + text(content_type) + text(body) for index in range(1 + place % 2))
        rows.append(text(b"id") + headers + inputs + end)
    return b"I" + b"".join(rows) + end


@contextmanager
def torchserve_in_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_retrieve_buffer", "_retrieve_request"):
            patch.setattr(otf_message_handler, name, getattr(otf_message_handler, name))
        read_in_blocks(otf_message_handler)
        yield


@pytest.fixture
def in_blocks() -> Iterator[None]:
    with torchserve_in_blocks():
        yield


@pytest.fixture(params=["false", "true"], ids=["as they are", "decoded"])
def decoded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TS_DECODE_INPUT_REQUEST", request.param)


def as_torchserve_reads(data: bytes) -> Any:
    return otf_message_handler.retrieve_msg(Pieces(data, []))


@pytest.mark.usefixtures("decoded")
@given(batches=st.lists(BODIES, min_size=1, max_size=3), sizes=st.lists(st.integers(1, 100_000), max_size=30))
def test_messages_are_those_that_torchserve_reads(batches: list[list[bytes]], sizes: list[int]) -> None:
    expected = [as_torchserve_reads(message(bodies)) for bodies in batches]
    connection = Pieces(b"".join(map(message, batches)), sizes)
    with torchserve_in_blocks():
        assert [otf_message_handler.retrieve_msg(connection) for _ in batches] == expected


CUT = message([b"", b"[1, 2, 3]"]).replace(text(b"application/json"), text("application/jsön".encode()))
"""A message whose content type has a character of two bytes."""


@pytest.mark.parametrize("cut", range(len(CUT)))
def test_a_message_may_be_cut_anywhere(cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TS_DECODE_INPUT_REQUEST", "false")
    expected = as_torchserve_reads(CUT)
    with torchserve_in_blocks():
        assert otf_message_handler.retrieve_msg(Pieces(CUT, [max(1, cut)])) == expected


@pytest.mark.usefixtures("in_blocks")
def test_a_form_with_two_fields_of_a_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TS_DECODE_INPUT_REQUEST", "false")
    twice = message([b"[1]", b"[2]"]).replace(b"body1", b"body0").replace(text(b"body0"), text(b"body"))
    _, (_, row) = otf_message_handler.retrieve_msg(Pieces(twice, []))
    fields = {field["name"]: field["value"] for field in row["parameters"]}
    with pytest.raises(RequestError, match="more than one field 'body': send a request for each"):
        RawRequest(fields, {}).body()


@pytest.mark.usefixtures("in_blocks")
def test_of_many_fields_the_first_thousand_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TS_DECODE_INPUT_REQUEST", "false")
    end = struct.pack("!i", -1)
    fields = b"".join(text(b"body%d" % number) + text(b"") + text(b"1") for number in range(2000))
    _, (row,) = otf_message_handler.retrieve_msg(Pieces(b"I" + text(b"id") + end + fields + end + end, []))
    assert [field["name"] for field in row["parameters"]] == [f"body{number}" for number in range(1000)]


@pytest.mark.parametrize("header", ["Content-Encoding", "content-encoding", "CONTENT-ENCODING"])
@pytest.mark.parametrize("coding", ["gzip", "br"])
def test_a_compressed_body_is_refused_by_its_header(coding: str, header: str) -> None:
    with pytest.raises(RequestError, match=f"the header Content-Encoding is '{coding}'") as refused:
        RawRequest({"body": b"\x1f\x8b"}, {header: coding}).body()
    assert (refused.value.kind, refused.value.status) == ("UnsupportedEncoding", 415)
    for nothing in ("identity", "Identity", ""):
        assert RawRequest({"body": b"[1]"}, {header: nothing}).body().value == b"[1]"


@pytest.mark.usefixtures("in_blocks", "decoded")
def test_a_value_can_be_changed_in_place() -> None:
    """An array is read where it lies, and torch warns of bytes that cannot be written."""
    _, (row,) = otf_message_handler.retrieve_msg(Pieces(message([b"body"]), []))
    assert [type(one["value"]) for one in row["parameters"]] == [bytearray]


@pytest.mark.usefixtures("in_blocks", "decoded")
def test_a_batch_takes_one_call_of_the_system() -> None:
    """TorchServe's own reader makes hundreds."""
    connection = Pieces(message([b"[1, 2, 3]"] * 32), [])

    command, rows = otf_message_handler.retrieve_msg(connection)

    assert (command, len(rows), connection.calls) == (b"I", 32, 1)


def test_a_long_body_is_not_read_beyond_its_end_nor_from_another_connection() -> None:
    """A block that is longer than what is missing would be copied again."""
    connection = Pieces(bytes(200_000) + b"rest", [])
    read = ReadAhead(otf_message_handler._retrieve_buffer, otf_message_handler._retrieve_request)

    assert read(connection, 200_000) == bytes(200_000)
    assert connection.data == b"rest"
    assert read(Pieces(b"abcd", []), 2) == b"ab"
    assert read(Pieces(b"efgh", []), 3) == b"efg"  # of another connection: its server begins a new message


@pytest.mark.usefixtures("in_blocks")
def test_the_worker_ends_as_before_when_the_server_closes_the_connection() -> None:
    for data in (b"", message([b"[1, 2, 3]"])[:50]):
        with pytest.raises(SystemExit) as exited:
            otf_message_handler.retrieve_msg(Pieces(data, []))
        assert exited.value.code == 0


def test_another_torchserve_goes_on_as_it_does(caplog: pytest.LogCaptureFixture) -> None:
    def other(conn: object, length: int, timeout: float) -> bytearray:
        raise AssertionError

    buffer_only = SimpleNamespace(__name__="ts", _retrieve_buffer=otf_message_handler._retrieve_buffer)
    for module in (SimpleNamespace(__name__="ts"), SimpleNamespace(__name__="ts", _retrieve_buffer=other), buffer_only):
        before = dict(vars(module))
        with caplog.at_level(logging.INFO):
            read_in_blocks(module)
        assert vars(module) == before
        assert "read one value at a time" in caplog.text
        caplog.clear()


@pytest.mark.usefixtures("in_blocks")
def test_a_second_model_of_the_worker_changes_nothing_more() -> None:
    """The reader is replaced once, so that no byte is lost between two of them."""
    first = otf_message_handler._retrieve_buffer, otf_message_handler._retrieve_request
    read_in_blocks(otf_message_handler)
    assert (otf_message_handler._retrieve_buffer, otf_message_handler._retrieve_request) == first


JAVA = ["java", "-cp", "x.jar", "org.pytorch.serve.ModelServer", "--python", "/usr/bin/python"]


def process_of(folder: Path, command: list[str]) -> Path:
    process = folder / "process"
    process.mkdir()
    (process / "cmdline").write_bytes(b"\0".join(word.encode() for word in command) + b"\0")
    (process / "cwd").symlink_to(folder)
    return process


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TS_CONFIG_FILE", raising=False)


@pytest.mark.parametrize(
    ("command", "file"),
    [
        ([*JAVA, "-f", "own.properties"], "own.properties"),
        (["java", "-DtsConfigFile=own.properties", *JAVA[1:]], "own.properties"),
        (JAVA, "config.properties"),
    ],
)
def test_the_file_that_the_server_reads_is_read(command: list[str], file: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text("# ours\nmax_response_size = 58000\nmodels={\\\n  }\n")

    found = read_server_properties(process_of(tmp_path, command))

    assert found == {"max_response_size": "58000", "models": "{}"}


def test_the_environment_names_the_file_too_and_without_a_file_there_are_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = process_of(tmp_path, JAVA)
    assert read_server_properties(process) == read_server_properties(tmp_path / "gone") == {}
    (tmp_path / "other").write_text("max_response_size=7\n")
    monkeypatch.setenv("TS_CONFIG_FILE", str(tmp_path / "other"))

    assert read_server_properties(process) == {"max_response_size": "7"}
