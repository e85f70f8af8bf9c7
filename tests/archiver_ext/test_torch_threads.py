import json
import os
from pathlib import Path

import pytest
import torch
from printed import Capture, printed
from tiny_archive import make_archive

from torchserve_neuron_lstm.archiver_ext import torch_threads
from torchserve_neuron_lstm.archiver_ext.archive.file_list import write_list
from torchserve_neuron_lstm.archiver_ext.torch_threads import on_threads
from torchserve_neuron_lstm.archiver_ext.torch_threads import worker_threads as threads_of


def test_a_call_runs_with_the_threads_of_its_engine() -> None:
    before = torch.get_num_threads()
    try:
        assert on_threads(1, torch.get_num_threads)() == 1
        assert on_threads(2, torch.get_num_threads)() == 2
    finally:
        torch.set_num_threads(before)


BLOCK = """\
neuron_lstm:
  inputs: {ids: {dtype: int64, shape: [batch, time]}}
  lengths: lengths
  buckets: {batch: [1, 4], length: [4, 8]}
"""


def archive_with(folder: Path, config: str | None, **facts: object) -> Path:
    archive = make_archive(folder, **facts)
    if config is not None:
        told = archive / "MAR-INF" / "MANIFEST.json"
        manifest = json.loads(told.read_text())
        manifest["model"]["configFile"] = "model-config.yaml"
        told.write_text(json.dumps(manifest))
        (archive / "model-config.yaml").write_text(config)
        write_list(archive)
    return archive


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("config", "threads", "expected"),
    [
        ("minWorkers: 2\nmaxWorkers: 2\n", None, 4),
        ("minWorkers: 2\nmaxWorkers: 2\n", 3, 3),
        ("minWorkers: 16\nmaxWorkers: 16\n", None, 1),
        ("batchSize: 8\n", None, 1),
        ("maxWorkers: many\n", None, 1),
        ("[\n", None, 1),
        (None, None, 1),
    ],
    ids=["divided", "configured", "more workers than cores", "one worker a core", "no number", "damaged", "no YAML"],
)
def test_the_cores_are_divided_among_the_workers(
    config: str | None, threads: int | None, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the handler does: without `maxWorkers` TorchServe starts one worker for each core."""
    monkeypatch.setattr(torch_threads, "available_cores", lambda: 8)

    assert threads_of(archive_with(tmp_path / "sums", config, threads=threads)) == expected


@pytest.mark.ci
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
@pytest.mark.parametrize("workers", [1, 2])
def test_calibrate_and_bench_have_the_threads_of_a_worker(
    workers: int, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_threads, "available_cores", lambda: 2)
    archive = archive_with(tmp_path / "sums", f"minWorkers: {workers}\nmaxWorkers: {workers}\n{BLOCK}")
    (tmp_path / "lengths.txt").write_text("1 3 8\n")

    assert json.loads(printed(capsys, "calibrate", archive, "--json"))["threads"] == 2 // workers
    bench = ["bench", archive, "--lengths", tmp_path / "lengths.txt", "--batch", "3", "--json"]
    assert json.loads(printed(capsys, *bench))["threads"] == 2 // workers
    assert json.loads(printed(capsys, *bench, "--threads", "1"))["threads"] == 1
