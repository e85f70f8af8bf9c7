import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fake_context import FakeContext
from hypothesis import given
from hypothesis import strategies as st
from tiny_archive import change_manifest

from torchserve_neuron_lstm.config.manifest import Manifest, read_manifest
from torchserve_neuron_lstm.handlers import torchserve
from torchserve_neuron_lstm.handlers.runtime import placement
from torchserve_neuron_lstm.handlers.runtime.placement import apply_placement, partition_cores, worker_lock_directory

WORKER = """
import os, sys
from pathlib import Path
from torchserve_neuron_lstm.config.manifest import read_manifest
from torchserve_neuron_lstm.handlers.runtime.placement import apply_placement

archive = Path(sys.argv[1])
threads = apply_placement(read_manifest(archive), archive, 2, os.environ)
print(threads, sorted(os.sched_getaffinity(0)), os.environ.get("NEURON_RT_VISIBLE_CORES"), flush=True)
sys.stdin.read()
"""
CORES = sorted(os.sched_getaffinity(0))
FIRST, SECOND = CORES[: len(CORES) // 2] or CORES, CORES[len(CORES) // 2 :] or CORES


@pytest.fixture(autouse=True)
def _own_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.fixture
def placed(archive: Path) -> Path:
    return change_manifest(archive, placement="cores")


@contextmanager
def worker(archive: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(archive)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        with process:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
            process.kill()
    finally:
        process.kill()


def on(cores: list[int]) -> str:
    return f"{len(cores)} {cores} None"


@pytest.mark.ci
def test_workers_take_shares_in_turn_and_a_killed_ones_is_free_at_once(placed: Path) -> None:
    with worker(placed) as (first, said), worker(placed) as (_, second), worker(placed) as (_, third):
        assert (said, second, third) == (on(FIRST), on(SECOND), on(FIRST))
        first.kill()
        first.wait()
        with worker(placed) as (_, heir), worker(placed) as (_, fourth):
            assert (heir, fourth) == (on(FIRST), on(SECOND))


def test_workers_of_another_archive_have_numbers_of_their_own(placed: Path, tmp_path: Path) -> None:
    other = change_manifest(placed.rename(tmp_path / "other"), threads=1)
    mine = worker_lock_directory(other)

    assert (placement.acquire_worker_index(mine), placement.acquire_worker_index(mine)) == (0, 1)
    assert worker_lock_directory(change_manifest(other, threads=2)) != mine
    assert mine.stat().st_mode & 0o777 == 0o700
    assert str(os.geteuid()) in mine.name


@pytest.mark.parametrize("squat", ["link", "open", "file"])
def test_numbers_that_others_could_take_are_refused(placed: Path, tmp_path: Path, squat: str) -> None:
    """In a directory that is writable for all users, another user could create the files first."""
    directory = worker_lock_directory(placed)
    directory.rmdir()
    if squat == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        directory.symlink_to(tmp_path / "elsewhere")
    elif squat == "open":
        directory.mkdir()
        directory.chmod(0o777)
    else:
        directory.write_text("")

    with pytest.raises(RuntimeError, match=r"remove it|not possible here"):
        apply_placement(read_manifest(placed), placed, 1, {})


@given(
    st.sets(st.integers(0, 300), min_size=1, max_size=70),
    st.none() | st.integers(1, 100),
    st.none() | st.integers(1, 100),
)
def test_every_core_is_in_one_share(cores: set[int], workers: int | None, threads: int | None) -> None:
    shares = partition_cores(sorted(cores), workers, threads)

    assert sorted(core for share in shares for core in share) == sorted(cores)
    sizes = {len(share) for share in shares}
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1
    if threads is None:
        assert len(shares) == min(workers or len(cores), len(cores))
    else:
        assert min(sizes) >= min(threads, len(cores))


@pytest.mark.parametrize("workers", [None, 0, -1, True, "2", 2.0])
def test_without_a_number_of_workers_there_is_one_a_core(workers: object) -> None:
    """TorchServe starts that many."""
    assert partition_cores([3, 5], workers, None) == [(3,), (5,)]


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The cores to which this process would be pinned, on a host of 8 cores."""
    found: list[tuple[int, ...]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(placement, "available_cores", lambda: 8)
    monkeypatch.setattr(placement, "pin_process", found.append)
    return found


@pytest.mark.parametrize(
    ("workers", "threads", "quota", "expected", "own_threads"),
    [
        (2, None, 8, [(0, 1, 2, 3), (4, 5, 6, 7), (0, 1, 2, 3)], 4),
        (4, None, 2, [(0, 1), (2, 3), (4, 5)], 1),
        (2, 3, 8, [(0, 1, 2, 3), (4, 5, 6, 7), (0, 1, 2, 3)], 3),
        (None, None, 8, [(0,), (1,), (2,)], 1),
        (1, 16, 8, [tuple(range(8))] * 3, 16),
    ],
)
def test_threads_are_as_many_as_the_cores_of_a_share(
    placed: Path,
    pinned: list[tuple[int, ...]],
    monkeypatch: pytest.MonkeyPatch,
    workers: int | None,
    threads: int | None,
    quota: int,
    expected: list[tuple[int, ...]],
    own_threads: int,
) -> None:
    monkeypatch.setattr(placement, "available_cores", lambda: quota)
    manifest = replace(read_manifest(placed), threads=threads)

    found = [apply_placement(manifest, placed, workers, {}) for _ in expected]

    assert pinned == expected
    assert found == [own_threads] * len(expected)


@pytest.mark.parametrize("backend", ["neuronx", "neuron"])
@pytest.mark.parametrize(
    ("workers", "environments", "cores"),
    [
        (2, [{}, {"NEURON_RT_NUM_CORES": "2"}, {}, {}, {"NEURON_RT_LOG_LEVEL": "INFO"}], ["0", None, "1", "0", "1"]),
        (None, [{}, {}, {}], ["0", "1", "2"]),  # it may be set over the management API, which no worker sees
    ],
)
def test_a_neuron_worker_is_given_a_core_of_the_device(
    placed: Path,
    pinned: list[tuple[int, ...]],
    backend: str,
    workers: int | None,
    environments: list[dict[str, str]],
    cores: list[str | None],
) -> None:
    manifest: Manifest = replace(read_manifest(placed), backend=backend)
    own = [dict(environment) for environment in environments]

    assert [apply_placement(manifest, placed, workers, one) for one in own] == [None] * len(own)

    assert [one.get("NEURON_RT_VISIBLE_CORES") for one in own] == cores
    assert pinned == []


def test_a_worker_is_placed_before_its_programs_are_loaded(placed: Path, pinned: list[tuple[int, ...]]) -> None:
    before = torch.get_num_threads()
    try:
        service = torchserve.load(FakeContext(model_dir=placed, model_yaml_config={"maxWorkers": 4}))
    finally:
        torch.set_num_threads(before)

    assert pinned == [(0, 1)]
    assert service.description["threads"] == 2


def test_without_placement_nothing_is_touched(archive: Path, pinned: list[tuple[int, ...]], tmp_path: Path) -> None:
    before = set(tmp_path.iterdir())

    assert apply_placement(read_manifest(archive), archive, 2, {}) is None
    assert pinned == []
    assert set(tmp_path.iterdir()) == before
