"""Archives in forks of the process that opened them: data loaders fork."""

import io
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from forks import in_fork
from tiny_archive import make_archive

from torchserve_neuron_lstm import open_archive
from torchserve_neuron_lstm.inference.errors import ArchiveError
from torchserve_neuron_lstm.inference.open_archive import OpenArchive

SEQUENCES = [[1, 2, 3], [4], [5, 6, 7, 8, 9]]

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_archive(tmp_path / "tiny")


def expect(model: OpenArchive, answers: list[object]) -> None:
    assert model.predict(SEQUENCES) == answers


def test_a_fork_answers_while_threads_of_its_parent_compute(folder: Path) -> None:
    with open_archive(folder, threads=2) as model:
        answers, is_over = model.predict(SEQUENCES), threading.Event()

        def compute() -> None:
            while not is_over.is_set():
                model.predict(SEQUENCES)

        threads = [threading.Thread(target=compute) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            assert all(in_fork(lambda: expect(model, answers)) for _ in range(5))
        finally:
            is_over.set()
            for thread in threads:
                thread.join()


COMPUTE_THEN_FORK = """
import _thread, os, sys, time, torch
if sys.argv[2] == "computes":
    torch.set_num_threads(2)
    torch.ones(2000, 2000).tanh().sum()
from torchserve_neuron_lstm import open_archive
from torchserve_neuron_lstm.inference.errors import ArchiveError
for threads in (None, 1, 2):
    if sys.argv[2] == "ends a thread":
        _thread.start_new_thread(time.sleep, (0.005,))  # threading does not count it, like one that has just ended
    child = os.fork()
    if child == 0:
        try:
            with open_archive(sys.argv[1], threads) as model:
                print(len(model.predict([[1, 2, 3]])), torch.get_num_threads(), flush=True)
        except ArchiveError as error:
            print(error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def opened_in_forks(folder: Path, parent: str) -> list[str]:
    command = [sys.executable, "-W", "ignore", "-c", COMPUTE_THEN_FORK, str(folder), parent]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return ended.stdout.splitlines()


@pytest.mark.ci
def test_a_fork_of_a_process_that_has_computed_opens_archives(folder: Path) -> None:
    """Torch would wait for the threads of the parent: one thread works, and more are refused."""
    without, one, two = opened_in_forks(folder, "computes")

    assert without == one == "1 1"
    assert two.startswith("torch cannot run on 2 threads here: this process is a fork of one that had computed")
    assert "threads=1" in two
    assert "spawn" in two


@pytest.mark.ci
@pytest.mark.few(1)
@pytest.mark.parametrize("parent", ["imports", "ends a thread"])
def test_a_fork_of_a_process_that_has_not_computed_has_all_threads(folder: Path, parent: str) -> None:
    """Torch starts new threads there. Threads of Python that are just ending do not count."""
    assert opened_in_forks(folder, parent)[1:] == ["1 1", "1 2"]


def test_a_fork_of_a_fork_answers_too(folder: Path) -> None:
    with open_archive(folder) as model:
        answers = model.predict(SEQUENCES)

        def nested() -> None:
            assert in_fork(lambda: expect(model, answers))

        assert in_fork(nested)


def test_a_fork_that_closes_an_archive_leaves_its_files_to_the_parent(folder: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed.tar.gz"
    os.system(f"tar -C {folder.parent} -czf {packed} {folder.name}")
    with open_archive(packed) as model:
        assert in_fork(model.close)
        assert model.directory.is_dir()
        assert len(list(model.answer_lines(io.BytesIO(b"[1, 2]\n")))) == 1

    assert not model.directory.exists()


def test_an_engine_with_threads_of_its_own_is_refused_in_a_fork(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchserve_neuron_lstm.backends.eager.Eager.runs_in_forks", False)
    with open_archive(folder) as model:

        def refused() -> None:
            with pytest.raises(ArchiveError, match=r"is a fork of the one .* open the archive in each process"):
                model.predict(SEQUENCES)

        assert in_fork(refused)
        assert len(model.predict(SEQUENCES)) == 3
