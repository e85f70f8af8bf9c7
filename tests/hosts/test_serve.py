"""`neuron-lstm serve`: no line for a good request, and nothing is left behind."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
import tiny_archive
from rest import JSON, get, post
from running_command import SECONDS, Command, started
from tiny_archive import make_archive, renamed
from torchserve_process import free_ports, host_environment, stop

from torchserve_neuron_lstm.archiver_ext.archive.file_list import write_list
from torchserve_neuron_lstm.archiver_ext.cli import main
from torchserve_neuron_lstm.config.histogram import parse_lengths

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300), pytest.mark.xdist_group("serve")]
REQUESTS = 100
LARGEST_BODY = 2000
ENDS = [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long)]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    archive = make_archive(tmp_path_factory.mktemp("archives") / "tiny")
    (archive / "model-config.yaml").write_text("minWorkers: 2\nmaxWorkers: 2\n")
    manifest = archive / "MAR-INF" / "MANIFEST.json"
    manifest.write_text(manifest.read_text().replace('"handler"', '"configFile": "model-config.yaml", "handler"'))
    write_list(archive)
    return archive


def five_ports() -> int:
    while True:
        (first,) = free_ports(1)
        try:
            with ExitStack() as stack:
                for port in range(first, first + 5):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
        except OSError:
            continue
        return first


def until(holds: Callable[[], bool], seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.1)
    return holds()


@pytest.mark.ci
@pytest.mark.parametrize(("by", "code"), ENDS)
def test_two_archives_are_served_as_printed_until_the_end(
    archive: Path, tmp_path: Path, temporary: Path, by: signal.Signals, code: int
) -> None:
    port = five_ports()
    words = [str(archive), str(renamed(archive, "other", tmp_path)), "--port", str(port)]
    with started(tmp_path, "serve", *words, TMPDIR=str(temporary)) as command:
        command.wait_until_served()
        lines = [line for line in command.text.splitlines() if line.startswith("  ")]
        answers = subprocess.run(["bash", "-ec", "\n".join(lines)], capture_output=True, text=True, check=True).stdout
        refused = post(port, "/predictions/sums", b"[1, 2]", JSON)
        ended = command.end(by)

        assert command.left() == []
    assert ended == code
    assert len(lines) == 3
    assert answers.count("[") == 8
    assert refused.json["type"] == "InvalidKeyException"
    assert "sums is ready, workers: 2." in command.text
    url, metrics = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port + 2}/metrics"
    assert f"Serving sums, other at {url}, metrics at {metrics}." in command.text
    assert [*temporary.iterdir()] == []
    with pytest.raises(OSError, match="refused"):
        get(port, "/ping")


@pytest.fixture(scope="module")
def quiet(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Command, int]]:
    """A command that runs for several tests, and its first port."""
    folder, port = tmp_path_factory.mktemp("quiet"), five_ports()
    with tempfile.TemporaryDirectory(prefix="ts-") as temporary:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tiny_archive, "CODEC", FAILING_CODEC)
            own = make_archive(folder / "failing", codec="codec_of_tests:Codec")
        words = [str(archive), str(renamed(own, "failing", folder / "named")), "--port", str(port)]
        options = ["--disable-token-auth", "--set", f"max_request_size={LARGEST_BODY}"]
        variables = {"TMPDIR": temporary, "LOG_LOCATION": str(folder / "logs"), "TS_CONFIG_FILE": "/nowhere"}
        with started(folder, "serve", *words, *options, **variables) as command:
            command.wait_until_served()
            yield command, port
            command.end(signal.SIGTERM)


FAILING_CODEC = """
class Codec:
    content_type = "text/plain"

    def decode(self, body, content_type):
        raise RuntimeError("the codec is broken")

    def encode(self, outputs, inputs):
        return b""
"""


@pytest.mark.ci
def test_a_hundred_requests_add_no_line(quiet: tuple[Command, int]) -> None:
    command, port = quiet
    before = command.text
    statuses = {post(port, "/predictions/sums", b"[1, 2, 3]", JSON).status for _ in range(REQUESTS)}
    file = command.log.parent / "logs" / "model_log.log"

    assert until(lambda: parse_lengths(file.read_bytes()).by_model["sums"].get(3, 0) >= REQUESTS)
    assert statuses == {200}
    assert command.text == before


@pytest.mark.ci
def test_the_metrics_are_at_the_metrics_port(quiet: tuple[Command, int]) -> None:
    _, port = quiet
    post(port, "/predictions/sums", b"[1, 2, 3]", JSON)

    def metrics() -> str:
        return get(port + 2, "/metrics").body.decode()

    assert until(lambda: 'neuron_lstm_requests_total{ModelName="sums"' in metrics())
    assert 'ts_inference_requests_total{model_name="sums"' in metrics()


def test_a_refused_request_is_seen(quiet: tuple[Command, int]) -> None:
    command, port = quiet
    statuses = [
        post(port, "/predictions/sums", b'["x"]', JSON).status,
        get(port, "/predictions/nobody").status,
        post(port, "/predictions/sums", b"[" + b"1, " * LARGEST_BODY + b"1]", JSON).status,
    ]

    assert statuses == [400, 404, 413]
    assert until(lambda: '"POST /predictions/sums HTTP/1.1" 400' in command.text)
    assert until(lambda: '"GET /predictions/nobody HTTP/1.1" 404' in command.text)


def test_an_error_in_a_worker_is_seen(quiet: tuple[Command, int]) -> None:
    command, port = quiet

    assert post(port, "/predictions/failing", b"1", {"Content-Type": "text/plain"}).status == 500
    assert until(lambda: 'raise RuntimeError("the codec is broken")' in command.text)
    assert "RuntimeError: the codec is broken" not in command.text, "the text may hold values of the request"


@pytest.mark.ci
def test_a_worker_that_dies_is_seen_and_started_again(quiet: tuple[Command, int]) -> None:
    command, port = quiet
    before = len(command.text)
    workers = [
        process
        for process in psutil.Process(command.process.pid).children(recursive=True)
        if "model_service_worker.py" in " ".join(process.cmdline())
    ]
    workers[0].kill()

    assert until(lambda: "Worker disconnected" in command.text[before:])
    assert until(lambda: "Torch worker started." in command.text[before:])
    assert post(port, "/predictions/sums", b"[1]", JSON).status == 200


@pytest.mark.ci
def test_the_printed_files_serve_with_the_stock_command(
    archive: Path, tmp_path: Path, temporary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port, folder = five_ports(), tmp_path / "with space"
    options = ["--port", str(port), "--disable-token-auth", "--print-config", str(folder)]
    assert main(["serve", str(archive), *options]) == 0
    printed = capsys.readouterr().out
    environment = {**os.environ, **host_environment(temporary), "LOG_LOCATION": str(tmp_path / "logs")}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    log = tmp_path / "log"
    with (
        log.open("w") as file,
        subprocess.Popen(
            ["bash", "-c", printed], cwd=temporary, env=environment, stdout=file, stderr=file, start_new_session=True
        ) as process,
    ):
        try:
            assert until(lambda: answers(port) and log.read_text().count("programs: ") == 2, SECONDS), log.read_text()
            before = log.read_text()
            statuses = {post(port, "/predictions/sums", b"[1, 2, 3]", JSON).status for _ in range(REQUESTS)}
            after = log.read_text()
        finally:
            stop(process)

    assert sorted(file.name for file in folder.iterdir()) == ["config.properties", "log4j2.xml", "metrics.yaml"]
    assert statuses == {200}
    assert after == before
    assert "neuron_lstm lengths 3:1" in (tmp_path / "logs" / "model_log.log").read_text()


def answers(port: int) -> bool:
    try:
        return post(port, "/predictions/sums", b"[1]", JSON).status == 200
    except OSError:
        return False  # it does not listen yet


def refusal(folder: Path, temporary: Path, *words: str, **variables: str) -> str:
    with started(folder, "serve", *words, TMPDIR=str(temporary), **variables) as command:
        assert command.process.wait(SECONDS) == 1, command.text
        assert command.left() == []
    assert [*temporary.iterdir()] == []
    assert "This is a bug" not in command.text
    return command.text


@pytest.mark.ci
def test_a_model_that_cannot_load_ends_the_start(archive: Path, tmp_path: Path, temporary: Path) -> None:
    changed = Path(shutil.copytree(archive, tmp_path / "changed"))
    (changed / "codec_of_tests.py").write_text("")
    told = refusal(tmp_path, temporary, str(changed), "--port", str(five_ports()))

    assert told.splitlines()[-1].startswith("error: TorchServe cannot load sums: the archive is not as it was packaged")
    assert "codec_of_tests.py" in told.splitlines()[-1]


@pytest.mark.parametrize("offset", range(5))
def test_a_port_of_another_process_is_refused(
    archive: Path, temporary: Path, offset: int, capsys: pytest.CaptureFixture[str]
) -> None:
    port = five_ports()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port + offset))
        listener.listen()

        assert main(["serve", str(archive), "--port", str(port)]) == 1
    written = capsys.readouterr()
    assert re.search(rf":{port + offset} cannot be used \(Address already in use\): give another port", written.err)
    assert written.out == ""


@pytest.mark.ci
def test_a_java_that_cannot_be_started_is_told(archive: Path, tmp_path: Path, temporary: Path) -> None:
    told = refusal(tmp_path, temporary, str(archive), "--port", str(five_ports()), JAVA_HOME="/nowhere")

    assert "java not found, please make sure JAVA_HOME is set properly" in told
    assert "error: TorchServe ended with exit code" in told
