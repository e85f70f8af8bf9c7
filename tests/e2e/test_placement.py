"""Workers of a real server run on their own cores, and requests in the buckets that the user chooses."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch
from archiving import archived, write_source
from rest import assert_close, post_json
from served_models import SCORER, scoring
from torchserve_process import TorchServe, serving

pytestmark = pytest.mark.ci

BUCKETS = '{batch: [1, 4], length: [4, 8], kernel: "my_kernel:choose"}'
BLOCK = scoring(BUCKETS, "backend: eager", "placement: cores")
KERNEL = "def choose(length, lengths):\n    return len(lengths) - 1\n"
CORES = sorted(os.sched_getaffinity(0))
SHARES = [CORES[: len(CORES) // 2], CORES[len(CORES) // 2 :]] if len(CORES) > 1 else [CORES, CORES]


def test_workers_keep_to_their_cores_also_in_a_killed_ones_place(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", SCORER, BLOCK)
    (source.folder / "my_kernel.py").write_text(KERNEL)
    config = source.folder / "model-config.yaml"
    config.write_text(config.read_text().replace("Workers: 1", "Workers: 2"))
    archived(source, "scorer", tmp_path, ["--extra-files", "my_kernel.py"])
    with serving(tmp_path, {"scorer": "scorer.mar"}, environment={"TMPDIR": str(tmp_path)}) as server:
        first = _placed(server, without=set())
        assert sorted(first.values()) == sorted(SHARES)
        frames = torch.randn(3, 3)
        reply = post_json(server.inference, "/predictions/scorer", frames.tolist())
        with torch.no_grad():
            assert_close(reply.json, source.model(frames[None], torch.tensor([3]))[0])

        killed = min(first)
        os.kill(killed, signal.SIGKILL)

        second = _placed(server, without={killed})
        assert sorted(second.values()) == sorted(SHARES)
        (heir,) = set(second) - set(first)
        assert second[heir] == first[killed]


def _placed(server: TorchServe, without: set[int]) -> dict[int, list[int]]:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        ready = {worker["pid"] for worker in server.workers("scorer") if worker["status"] == "READY"} - without
        if len(ready) == 2:
            return {pid: sorted(os.sched_getaffinity(pid)) for pid in ready}
        time.sleep(0.3)
    raise AssertionError(server.log_lines()[-40:])
