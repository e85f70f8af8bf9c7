"""`neuron-lstm serve --server builtin`: responses are those of TorchServe, and none is lost."""

import os
import shutil
import signal
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import grpc
import psutil
import pytest
from grpc_calls import call, equal_over_rest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from host_archives import Archives, in_process
from mixed_requests import frames_of, mixed_requests
from rest import JSON, get, post
from running_command import Command, started
from tiny_archive import as_mar, change_manifest, renamed
from tls import certificate
from torchserve_process import free_ports

from torchserve_neuron_lstm.archiver_ext.archive.file_list import write_list
from torchserve_neuron_lstm.archiver_ext.cli import main
from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest

pytestmark = pytest.mark.timeout(300)
MODELS = ("scorer", "tagger", "stream")
SUMS = "/predictions/sums"


class Server(NamedTuple):
    command: Command
    http: int
    grpc: int

    def workers(self) -> list[psutil.Process]:
        children = psutil.Process(self.command.process.pid).children()
        return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


@contextmanager
def serving(folder: Path, *words: str | Path) -> Iterator[Server]:
    http, port = free_ports(2)
    options = ["--server", "builtin", "--port", http, "--grpc-port", port, "--drain-seconds", 1]
    with started(folder, "serve", *map(str, [*words, *options])) as command:
        command.wait_until_served()
        yield Server(command, http, port)
        if command.process.poll() is None:
            assert command.end(signal.SIGINT) == 0


def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


@contextmanager
def asked(port: int, ids: bytes = b"[1, 2, 3]") -> Iterator[list[object]]:
    """The statuses and errors of requests that four clients send all the time, each over a connection of its own."""
    ending, found = threading.Event(), list[object]()

    def ask() -> None:
        while not ending.is_set():
            try:
                found.append(post(port, SUMS, ids, JSON).status)
            except OSError as error:
                found.append(type(error))
                if isinstance(error, ConnectionRefusedError):
                    return

    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(ask)
        try:
            yield found
        finally:
            ending.set()


def test_500_mixed_requests_have_equal_bytes_on_the_server_and_in_process(archives: Archives, tmp_path: Path) -> None:
    """Those of other hosts are compared with the service in process, too."""
    services, differing, statuses = dict(in_process(archives, MODELS)), [], set()
    with serving(tmp_path, *map(archives.path, MODELS)) as server:
        for model, path, body, headers in mixed_requests(500):
            found = post(server.http, path, body, headers)
            (own,) = services[model].handle([RawRequest({"body": body}, headers)])
            statuses.add(found.status)
            if (found.status, found.body) != (own.status, own.body):
                differing.append((path, body[:80], found, own))
        over_grpc = equal_over_rest(server.http, server.grpc, "scorer", {"frames": frames_of(9, 9)[None]})
        several = post(server.http, "/invocations", b"[1]", JSON)

    assert differing == []
    assert statuses == {200, 400, 413}
    assert over_grpc
    assert (several.status, several.json["type"]) == (404, "ResourceNotFoundException")


def test_a_worker_that_dies_is_started_again_while_another_answers(archive: Path, tmp_path: Path) -> None:
    with serving(tmp_path, archive, "--workers", "2") as server, asked(server.http) as found:
        first, second = server.workers()
        first.kill()
        until(lambda: "A worker ended, exit code -9: another one starts." in server.command.text)
        before = len(found)
        until(lambda: len(found) > before + 100)
        counted = get(server.http, "/metrics").body.decode()
        workers = server.workers()

    assert found.count(200) >= len(found) - 4
    assert second in workers
    assert len(workers) == 2
    assert 'neuron_lstm_requests_total{ModelName="sums",ModelVersion="2.0"}' in counted


def test_a_changed_archive_takes_over_without_a_refused_request_and_a_damaged_one_does_not(
    archive: Path, tmp_path: Path
) -> None:
    served = Path(shutil.copytree(archive, tmp_path / "sums"))
    mar = as_mar(served, tmp_path / "served.mar")
    with serving(tmp_path, mar, "--workers", "2") as server, asked(server.http) as found:
        for text in ("3.0", "4.0"):
            told = served / "MAR-INF" / "MANIFEST.json"
            told.write_text(told.read_text().replace("2.0", text).replace("3.0", text))
            write_list(served)
            as_mar(served, tmp_path / "next.mar").replace(mar)
            if text == "4.0":
                server.command.process.send_signal(signal.SIGHUP)
            until(lambda text=text: f"sums is replaced: version {text}." in server.command.text)
        assert post(server.http, "/predictions/sums/4.0", b"[1]", JSON).status == 200
        mar.write_bytes(mar.read_bytes()[:-100])
        until(lambda: f"sums stays as it is: {mar} is damaged: its end is missing" in server.command.text)
        assert {*found} == {200}
        server.workers()[0].kill()  # the next one has the former archive, too
        until(lambda: "another one starts" in server.command.text)
        before = len(found)
        until(lambda: len(found) > before + 100)
        assert "cannot start" not in server.command.text


def test_an_end_says_that_it_is_not_ready_and_answers_what_has_begun(archive: Path, tmp_path: Path) -> None:
    with serving(tmp_path, archive) as server, socket.create_connection(("127.0.0.1", server.http), 60) as begun:
        head = b"POST /predictions/sums HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        begun.sendall(head + b"Content-Length: 9\r\n\r\n[1, 2")
        with asked(server.http) as found:
            os.killpg(server.command.process.pid, signal.SIGTERM)  # as systemd does
            until(lambda: get(server.http, "/ping").status == 503)
            ready, live = get(server.http, "/v2/health/ready"), get(server.http, "/v2/health/live")
            over_grpc = call(server.grpc, "ServerReady", b"").message
            last = post(server.http, "/invocations", b"[1]", JSON)
            until(lambda: ConnectionRefusedError in found)
        begun.sendall(b", 3]")
        answer = begun.makefile("rb").read()
        assert server.command.process.wait(60) == 0
        assert server.command.left() == []

    assert (ready.status, live.status, over_grpc) == (503, 200, b"")
    assert (last.status, last.headers["connection"]) == (200, "close")
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert {*found} <= {200, ConnectionRefusedError, ConnectionResetError}  # of those that nobody has accepted
    assert found.count(200) >= len(found) - 8


def test_only_who_has_the_token_is_answered_over_tls(archive: Path, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "127.0.0.1")
    (tmp_path / "token").write_text("secret\n")
    trusted = ssl.create_default_context(cafile=cert)
    with serving(tmp_path, archive, "--cert", cert, "--key", key, "--token-file", tmp_path / "token") as server:

        def status(path: str, **headers: str) -> int:
            asking = urllib.request.Request(f"https://127.0.0.1:{server.http}{path}", headers=headers)
            try:
                return int(urllib.request.urlopen(asking, context=trusted, timeout=60).status)
            except urllib.error.HTTPError as error:
                with error:
                    return error.code

        def code(service: str, metadata: list[tuple[str, str]]) -> str:
            try:
                with grpc.secure_channel(f"127.0.0.1:{server.grpc}", grpc.ssl_channel_credentials(cert.read_bytes())) as to:
                    if service == "health":
                        found = HealthStub(to).Check(HealthCheckRequest())
                        assert found.status == HealthCheckResponse.SERVING
                    else:
                        to.unary_unary(f"/inference.GRPCInferenceService/{service}")(b"", metadata=metadata)
            except grpc.RpcError as error:
                return str(error.code().name)
            return "OK"

        right, wrong = [("authorization", "Bearer secret")], [("authorization", "Bearer guessed")]
        assert [status(path) for path in ("/ping", "/v2/health/ready", "/v2", "/metrics")] == [200, 200, 401, 401]
        assert [status("/v2", Authorization=value) for _, value in right + wrong] == [200, 401]
        assert [code("ServerMetadata", one) for one in (right, wrong, [])] == ["OK", *["UNAUTHENTICATED"] * 2]
        assert [code("health", []), code("ServerLive", [])] == ["OK", "OK"]
        assert "secret" not in server.command.text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--workers", "2"], "--workers is an option of --server builtin"),
        (["--server", "builtin", "--set", "a=b"], "--set is an option of --server torchserve"),
        (["--server", "builtin", "--token-file", "none"], "--token-file: expected a file with one word of ASCII: none"),
        (["--server", "builtin", "--cert", "none"], "--cert none and --key None are no pair for TLS"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    archive: Path, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(archive), *words]) == 1
    assert told in capsys.readouterr().err


def test_an_archive_that_cannot_be_loaded_ends_the_start(archive: Path, tmp_path: Path) -> None:
    other = change_manifest(renamed(archive, "other", tmp_path), requires=(("none", "no_module", "1.0"),))
    write_list(other)
    words = ["--server", "builtin", "--port", str(free_ports(1)[0])]
    with started(tmp_path, "serve", str(archive), str(other), *words) as command:
        assert command.process.wait(60) == 1
        assert command.left() == []
        assert "error: other: this archive needs none" in command.text
