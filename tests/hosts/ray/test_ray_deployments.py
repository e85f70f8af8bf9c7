"""Ray Serve: replicas follow the load, leave no files, and tell why they do not start."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from host_archives import Archives
from torchserve_process import free_ports

from torchserve_neuron_lstm.hosts.ray_serve.command import error_of

pytestmark = [pytest.mark.timeout(300), pytest.mark.long]
PROGRAM = Path(__file__).with_name("deployments.py")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, archives: Archives) -> dict[str, Any]:
    without_engine = tmp_path_factory.mktemp("path")
    (without_engine / "onnxruntime.py").write_text('raise ImportError("it is not installed")')
    (port,) = free_ports(1)
    # a short path, in which Ray makes sockets
    with tempfile.TemporaryDirectory(prefix="d-", ignore_cleanup_errors=True) as temporary:
        command = [sys.executable, str(PROGRAM), str(port), str(archives.path("scorer")), str(without_engine)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=280, env={**os.environ, "TMPDIR": temporary}
        )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]  # Ray writes there too
    return {key: value for line in lines for key, value in json.loads(line).items()}


def test_replicas_follow_a_load_that_comes_and_goes_and_nobody_is_refused(found: dict[str, Any]) -> None:
    seen = found["replicas"]

    assert (seen[0], max(seen), seen[-1]) == (1, 3, 1)
    assert [*found["statuses"]] == ["200"]
    assert found["statuses"]["200"] > 100


def test_a_replica_that_ends_deletes_the_files_that_it_unpacked(found: dict[str, Any]) -> None:
    assert found["unpacked"] > 0
    assert found["unpacked afterwards"] == 0


def test_without_the_engine_no_replica_starts_and_the_status_tells_why(found: dict[str, Any]) -> None:
    assert "this host's ONNX Runtime cannot load" in error_of(found["without the engine"])
    assert "it is not installed" in error_of(found["without the engine"])
