"""`neuron-lstm serve-ray`: archives are served until it ends, and nothing that it started is left."""

import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import running_command
import tritonclient.grpc as triton
from host_archives import Archives
from ray.exceptions import RayActorError
from rest import JSON, get, post
from running_command import SECONDS, Command
from tiny_archive import renamed
from torchserve_process import free_ports

from torchserve_neuron_lstm.archiver_ext.cli import main
from torchserve_neuron_lstm.hosts.ray_serve import command as serve_ray
from torchserve_neuron_lstm.inference.errors import ArchiveError

pytestmark = pytest.mark.timeout(300)
OWN_RAY = """
import ray, sys
ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""


@contextmanager
def started(folder: Path, *words: str, **variables: str) -> Iterator[Command]:
    with running_command.started(folder, "serve-ray", *words, **{"RAY_ADDRESS": "local", **variables}) as command:
        yield command


@contextmanager
def a_ray() -> Iterator[str]:
    """The address of a Ray of another process."""
    with subprocess.Popen(
        [sys.executable, "-c", OWN_RAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()
            process.wait(SECONDS)


def joining(address: str) -> dict[str, str]:
    """The variables of a command that uses a Ray with a token, as `ray.init` starts it."""
    return {"RAY_ADDRESS": address, "RAY_AUTH_MODE": "token"}


def ports_of(http: int, grpc: int) -> list[str]:
    return ["--port", str(http), "--grpc-port", str(grpc)]


def test_two_archives_are_served_on_a_ray_of_their_own_until_ctrl_c(archive: Path, tmp_path: Path) -> None:
    http, grpc = free_ports(2)
    other = renamed(archive, "other", tmp_path)
    with started(tmp_path, str(archive), str(other), *ports_of(http, grpc)) as command:
        command.wait_until_served()
        answers = [post(http, f"/predictions/{name}", b"[1, 2]", JSON) for name in ("sums", "other")]
        with triton.InferenceServerClient(f"127.0.0.1:{grpc}") as client:
            assert client.is_model_ready("other")
        code = command.end(signal.SIGINT)
        text = command.text

        assert command.left() == []
    assert [answer.status for answer in answers] == [200, 200]
    assert answers[0].body == answers[1].body
    assert code == 130
    assert f"Serving sums, other at http://127.0.0.1:{http}, replicas: 1, threads of each: 1." in text
    assert f"-d '[1, 1, 1]' http://127.0.0.1:{http}/predictions/other" in text
    assert "Traceback" not in text


@pytest.mark.long
def test_a_ray_that_ran_before_stays(archive: Path, tmp_path: Path) -> None:
    http, grpc = free_ports(2)
    (tmp_path / "again").mkdir()
    with a_ray() as address:
        for folder in (tmp_path, tmp_path / "again"):
            with started(folder, str(archive), *ports_of(http, grpc), **joining(address)) as command:
                command.wait_until_served()
                assert f"Connected to the Ray at {address}." in command.text
                assert post(http, "/predictions/sums", b"[1, 2]", JSON).status == 200
                assert command.end(signal.SIGTERM) == 143
            with pytest.raises(OSError, match="refused"):
                get(http, "/v2")


def refusal(folder: Path, *words: str, **variables: str) -> str:
    with ExitStack() as stack:
        command = stack.enter_context(started(folder, *words, **variables))
        assert command.process.wait(SECONDS) == 1, command.text
        assert command.left() == []
        assert "Traceback" not in command.text
        return command.text


@pytest.mark.long
def test_what_another_application_has_is_not_taken(ray_port: int, archives: Archives, tmp_path: Path) -> None:
    import ray

    address = joining(ray.get_runtime_context().gcs_address)
    (other,) = free_ports(1)
    scorer = str(archives.path("scorer"))

    assert f"give its --host 127.0.0.1 --port {ray_port}" in refusal(tmp_path, scorer, "--port", str(other), **address)
    assert 'Prefix / is being used by application "default"' in refusal(
        tmp_path, scorer, "--port", str(ray_port), **address
    )
    assert get(ray_port, "/v2/models/scorer/ready").status == 200


@pytest.mark.long
def test_a_port_of_another_process_is_refused(archive: Path, tmp_path: Path) -> None:
    http, grpc = free_ports(2)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", grpc))
        listener.listen()
        told = refusal(tmp_path, str(archive), *ports_of(http, grpc))

    assert f":{grpc} cannot be used (Address already in use): give another port" in told


@pytest.mark.long
def test_replicas_that_would_wait_for_cpus_without_end_are_refused(archive: Path, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    told = refusal(tmp_path, str(archive), "--replicas", "500", "--threads", "2", "--port", str(port))

    assert "500 replicas with 2 threads need 1000 CPUs, this machine has" in told


@pytest.mark.long
def test_a_ray_that_is_not_there_is_named(archive: Path, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    told = refusal(tmp_path, str(archive), RAY_ADDRESS=f"127.0.0.1:{port}")

    assert f"there is no Ray at 127.0.0.1:{port} (RAY_ADDRESS)" in told
    assert "RAY_ADDRESS=local starts one here" in told


@pytest.mark.long
def test_an_archive_that_ray_cannot_start_is_told(archive: Path, tmp_path: Path) -> None:
    changed = Path(shutil.copytree(archive, tmp_path / "changed"))
    (changed / "codec_of_tests.py").write_text("")
    (port,) = free_ports(1)
    told = refusal(tmp_path, str(changed), "--port", str(port))

    assert "error: Ray cannot serve the archives" in told
    assert "codec_of_tests.py" in told


def test_a_missing_or_damaged_archive_is_refused_before_ray_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "damaged.mar").write_bytes(b"PK\x03\x04")

    for file, told in (("none.mar", "there is no archive"), ("damaged.mar", "is damaged")):
        assert main(["serve-ray", str(tmp_path / file)]) == 1
        written = capsys.readouterr()
        assert told in written.err
        assert written.out == ""


class SlowServe:
    """A Ray Serve that serves nothing, and whose proxy is killed before it is ready."""

    def status(self) -> SimpleNamespace:
        return SimpleNamespace(proxies={}, applications={})

    def start(self, **_options: object) -> None:
        raise RayActorError(error_msg="The actor never ran")

    def shutdown(self) -> None:
        """Nothing was started."""


def test_a_serve_whose_proxy_starts_too_slowly_is_told(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_ray, "_connected", lambda *_: nullcontext())
    monkeypatch.setattr(serve_ray, "_started_here", lambda: False)
    monkeypatch.setattr(serve_ray, "serve", SlowServe())

    with pytest.raises(ArchiveError, match="RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"):
        serve_ray.serve_archives(serve_ray.RaySettings([archive]), print)


@pytest.mark.parametrize("address", ["127.0.0.1:99999", f"127.0.0.1:{'9' * 5000}", "127.0.0.1:²", f"{'a' * 70}.b:1"])
def test_an_address_of_ray_that_cannot_be_is_refused(address: str) -> None:
    with pytest.raises(ArchiveError, match=r"there is no Ray at .* \(RAY_ADDRESS\)"):
        serve_ray._check_address(address)


def test_an_address_of_ray_may_be_in_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of IPv6 are written before a port."""
    asked: list[object] = []

    def connected(address: object, _timeout: float) -> socket.socket:
        asked.append(address)
        return socket.socket()

    monkeypatch.setattr(socket, "create_connection", connected)
    serve_ray._check_address("[::1]:6379")

    assert asked == [("::1", 6379)]
