"""`neuron-lstm serve --server builtin`: responses are those of other hosts, and none is lost."""

import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import psutil
import pytest
from builtin_server import serving
from grpc_calls import call, equal_over_rest
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub
from host_archives import Archives, in_process
from mixed_requests import frames_of, mixed_requests
from rest import JSON, get, post
from tiny_archive import as_mar
from tls import certificate
from waiting import wait_for

from torchserve_neuron_lstm.archiver_ext.archive.file_list import write_list
from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest

pytestmark = pytest.mark.timeout(300)
MODELS = ("scorer", "tagger", "stream")


@contextmanager
def asked(port: int) -> Iterator[list[object]]:
    """The statuses and errors of requests that four clients send all the time, each over a connection of its own."""
    ending, found = threading.Event(), list[object]()

    def ask() -> None:
        while not ending.is_set() and ConnectionRefusedError not in found:
            try:
                found.append(post(port, "/predictions/sums", b"[1, 2, 3]", JSON).status)
            except OSError as error:  # noqa: PERF203 - any request may fail
                found.append(type(error))

    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(ask)
        try:
            yield found
        finally:
            ending.set()


def test_500_mixed_requests_have_equal_bytes_on_the_server_and_in_process(archives: Archives, tmp_path: Path) -> None:
    services, differing, statuses = dict(in_process(archives, MODELS)), [], set()
    with serving(tmp_path, *map(archives.path, MODELS)) as server:
        for model, path, body, headers in mixed_requests(500):
            found = post(server.http, path, body, headers)
            (own,) = services[model].handle([RawRequest({"body": body}, headers)])
            statuses.add(found.status)
            if (found.status, found.body) != (own.status, own.body):
                differing.append((path, body[:80], found, own))
        assert equal_over_rest(server.http, server.grpc, "scorer", {"frames": frames_of(9, 9)[None]})
        assert post(server.http, "/invocations", b"[1]", JSON).json["type"] == "ResourceNotFoundException"

    assert differing == []
    assert statuses == {200, 400, 413}


def test_workers_and_archives_are_replaced_while_others_answer(archive: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(archive, tmp_path / "sums"))
    mar, told = as_mar(folder, tmp_path / "served.mar"), folder / "MAR-INF" / "MANIFEST.json"
    with serving(tmp_path, mar, "--workers", "2") as server, asked(server.http) as found:
        for before, version in (("2.0", "3.0"), ("3.0", "4.0")):
            told.write_text(told.read_text().replace(before, version))
            write_list(folder)
            as_mar(folder, tmp_path / "next.mar").replace(mar)
            server.command.process.send_signal(signal.SIGHUP if version == "4.0" else signal.SIGCONT)
            server.wait_for_line(f"sums is replaced: version {version}.")
        mar.write_bytes(mar.read_bytes()[:-100])
        server.wait_for_line(f"sums stays as it is: {mar} is damaged: its end is missing")
        assert {*found} == {200}
        children = psutil.Process(server.command.process.pid).children()
        next(child for child in children if "spawn_main" in " ".join(child.cmdline())).kill()
        server.wait_for_line("A worker ended, exit code -9: another one starts.")
        before_restart = len(found)
        wait_for(lambda: len(found) > before_restart + 100)
        assert "cannot start" not in server.command.text  # it has the former archive
        counted = get(server.http, "/metrics").body.decode()

    assert found.count(200) >= len(found) - 4
    assert all(f'requests_total{{ModelName="sums",ModelVersion="{version}.0"}}' in counted for version in (2, 4))


def test_an_end_says_that_it_is_not_ready_and_answers_what_has_begun(archive: Path, tmp_path: Path) -> None:
    with serving(tmp_path, archive) as server, socket.create_connection(("127.0.0.1", server.http), 60) as begun:
        head = b"POST /predictions/sums HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        begun.sendall(head + b"Content-Length: 9\r\n\r\n[1, 2")
        with asked(server.http) as found:
            os.killpg(server.command.process.pid, signal.SIGTERM)  # as systemd does
            wait_for(lambda: get(server.http, "/ping").status == 503)
            statuses = [get(server.http, f"/v2/health/{name}").status for name in ("ready", "live")]
            assert call(server.grpc, "ServerReady", b"").message == b""
            last = post(server.http, "/invocations", b"[1]", JSON)
            wait_for(lambda: ConnectionRefusedError in found)
        begun.sendall(b", 3]")
        assert begun.makefile("rb").read().startswith(b"HTTP/1.1 200 OK")
        assert server.command.process.wait(60) == 0

    assert (statuses, last.status, last.headers["connection"]) == ([503, 200], 200, "close")
    assert {*found} <= {200, ConnectionRefusedError, ConnectionResetError}  # the last: nobody had accepted them
    assert found.count(200) >= len(found) - 8


def test_only_who_has_the_token_is_answered_over_tls(archive: Path, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "127.0.0.1")
    (tmp_path / "token").write_text("secret\n")
    with serving(tmp_path, archive, "--cert", cert, "--key", key, "--token-file", tmp_path / "token") as server:

        def status(path: str, token: str = "") -> str:
            words = ["curl", "-s", "--cacert", str(cert), "-H", f"Authorization: {token}", "-w", "\n%{http_code}"]
            return subprocess.check_output([*words, f"https://127.0.0.1:{server.http}{path}"])[-3:].decode()

        def code(token: str = "") -> str:
            found = channel.unary_unary("/inference.GRPCInferenceService/ServerMetadata").with_call
            try:
                return str(found(b"", metadata=[("authorization", token)])[1].code().name)
            except grpc.RpcError as error:
                return str(error.code().name)

        right, wrong = "Bearer secret", "Bearer guessed"
        assert [status(path) for path in ("/ping", "/v2/health/ready", "/v2", "/metrics")] == ["200"] * 2 + ["401"] * 2
        assert [status("/v2", token) for token in (right, wrong)] == ["200", "401"]
        trusted = grpc.ssl_channel_credentials(cert.read_bytes())
        with grpc.secure_channel(f"127.0.0.1:{server.grpc}", trusted) as channel:
            assert [code(token) for token in (right, wrong, "")] == ["OK", *["UNAUTHENTICATED"] * 2]
            assert HealthStub(channel).Check(HealthCheckRequest()).status == 1
