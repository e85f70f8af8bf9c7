"""Ray Serve on two nodes: a store on disk is refused, one that is down is waited for."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from archiving import archived, write_source
from host_archives import Archives
from redis_server import RedisServer, running, server_programs
from served_models import SCORER, scoring
from torchserve_process import free_ports

pytestmark = pytest.mark.timeout(300)
PROGRAM = Path(__file__).with_name("two_nodes.py")


@pytest.fixture
def two_nodes(tmp_path: Path, archives: Archives, store: RedisServer) -> dict[str, object]:
    """The findings of a program that deploys archives on two nodes; the store starts after a while."""
    streaming = f"streaming: {{store: redis, redis: {{url: {store.url}, timeout_seconds: 2}}}}"
    block = scoring("{batch: [1, 8], length: [16]}", "backend: native", streaming)
    source = write_source(tmp_path / "source", SCORER, block)
    archived(source, "shared", tmp_path)
    (port,) = free_ports(1)
    given = [str(port), str(tmp_path / "shared.mar"), str(archives.path("stream"))]
    program = subprocess.Popen(
        [sys.executable, str(PROGRAM), *given], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert program.stdout is not None
        lines = [program.stdout.readline()]  # the application cannot be ready yet
        with running(store):
            rest, errors = program.communicate(timeout=200)
    finally:
        program.kill()
        program.wait()
    assert program.returncode == 0, errors
    lines += [line for line in rest.splitlines() if line.startswith("{")]  # Ray writes there too
    return {key: value for line in lines for key, value in json.loads(line).items()}


@pytest.fixture
def store(tmp_path: Path) -> RedisServer:
    (tmp_path / "redis").mkdir()
    return RedisServer(next(iter(server_programs().values())), tmp_path / "redis")


def test_a_replica_waits_for_its_store_and_sessions_on_disk_are_refused(two_nodes: dict[str, object]) -> None:
    assert two_nodes["without a store"] == "DEPLOYING"
    assert two_nodes["with a store"] == [200, 200]
    assert "package it with store: redis" in str(two_nodes["on disk"])
