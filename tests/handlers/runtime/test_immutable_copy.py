"""Copies from which weights are mapped: nobody can change them, and workers share them."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest
import torch
from safetensors.torch import save_file

from torchserve_neuron_lstm.backends.weights import read_weights
from torchserve_neuron_lstm.handlers.runtime import immutable_copy as module
from torchserve_neuron_lstm.handlers.runtime.immutable_copy import DigestMismatch, immutable_copy
from torchserve_neuron_lstm.handlers.runtime.loader import load_archive

LOAD = """
import hashlib, sys
from pathlib import Path
from subprocess import PIPE
from torchserve_neuron_lstm.handlers.runtime.immutable_copy import immutable_copy
path = Path(sys.argv[1])
copy = immutable_copy(path, sys.argv[2])
print(copy.path.stat().st_ino, flush=True)
sys.stdin.read()
"""


def digest_of(path: Path) -> str:
    """The sha256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that is new to every process of this machine."""
    path = tmp_path / "weights.pt"
    path.write_bytes(os.urandom(100_000))
    return path


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_mapped_weights_survive_a_file_that_is_overwritten_and_cut(tmp_path: Path, suffix: str) -> None:
    """The tensors keep their values; reading beyond the end of a mapped file would end the process."""
    path, state = tmp_path / f"weights{suffix}", {"w": torch.arange(1_000_000, dtype=torch.float32)}
    if suffix == ".pt":
        torch.save(state, path)
    else:
        save_file(state, path)
    copy = immutable_copy(path, digest_of(path))
    read = read_weights(path, copy.path)
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xff" * 100_000)
        file.truncate(1000)

    assert torch.equal(read["w"], state["w"])


def test_an_archive_answers_as_before_when_its_weights_are_cut(archive: Path) -> None:
    """The file on disk is not read after the archive was loaded."""
    loaded = load_archive(archive, threads=1)
    requests, lengths = [[torch.tensor([1, 2, 3])]], [3]
    (before,), _ = loaded.run_plan(loaded.plan(lengths), requests, lengths)
    before = tuple(tensor.clone() for tensor in before)
    os.truncate(archive / "weights.pt", 10)
    (after,), _ = loaded.run_plan(loaded.plan(lengths), requests, lengths)

    assert torch.equal(before[0], after[0])


@pytest.mark.parametrize("size", [0, 10, 700])
def test_a_cut_file_is_an_error_that_names_it(archive: Path, size: int) -> None:
    """The process goes on."""
    os.truncate(archive / "weights.pt", size)

    with pytest.raises(RuntimeError, match=r"weights\.pt was changed"):
        load_archive(archive, threads=1)


def test_nobody_can_write_or_cut_a_copy(file: Path) -> None:
    """The kernel refuses it, even to the process that made it."""
    copy = immutable_copy(file, digest_of(file))

    with pytest.raises(PermissionError), copy.path.open("r+b", buffering=0) as opened:
        opened.write(b"other")
    with pytest.raises(PermissionError):
        os.truncate(copy.path, 10)


def test_a_file_of_another_digest_is_refused(file: Path) -> None:
    """The copy is compared, not the file, so nothing can come in between."""
    with pytest.raises(DigestMismatch):
        immutable_copy(file, "0" * 64)


def test_workers_that_start_together_share_one_copy(file: Path) -> None:
    """Each is a process of its own; a further one finds the copy of those that are left."""
    words = [sys.executable, "-c", LOAD, str(file), digest_of(file)]
    workers = [subprocess.Popen(words, stdin=PIPE, stdout=PIPE, text=True) for _ in range(3)]
    try:
        told = [worker.stdout.readline() for worker in workers if worker.stdout is not None]
        assert len(told) == len(workers)
        workers[0].kill()
        workers[0].wait()
        own = immutable_copy(file, digest_of(file))

        assert {int(line) for line in told} == {own.path.stat().st_ino}
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def test_a_changed_file_is_refused_although_another_worker_has_its_copy(file: Path) -> None:
    """Whether an archive loads does not depend on the processes beside it."""
    digest = digest_of(file)
    copy = immutable_copy(file, digest)
    with file.open("ab") as opened:
        opened.write(b" ")

    with pytest.raises(DigestMismatch):
        immutable_copy(file, digest)
    assert digest_of(copy.path) == digest


def test_a_copy_that_can_be_changed_is_not_shared(file: Path) -> None:
    """Another process of the user may give its file in memory any name."""
    digest = digest_of(file)
    descriptor = os.memfd_create(f"neuron_lstm-{digest}", os.MFD_ALLOW_SEALING)
    try:
        os.write(descriptor, file.read_bytes())
        copy = immutable_copy(file, digest)
        assert copy.path.stat().st_ino != os.fstat(descriptor).st_ino
    finally:
        os.close(descriptor)


def test_a_copy_with_other_content_is_not_shared(file: Path, tmp_path: Path) -> None:
    """Its name is no proof."""
    digest, other = digest_of(file), tmp_path / "other"
    other.write_bytes(b"other")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_name", lambda _: f"neuron_lstm-{digest}")
        planted = immutable_copy(other, digest_of(other))
    copy = immutable_copy(file, digest)

    assert copy.path.read_bytes() == file.read_bytes()
    assert planted.path.read_bytes() == b"other"


def test_the_memory_is_free_once_nobody_uses_the_copy(file: Path) -> None:
    """The file in memory has no other name."""
    copy = immutable_copy(file, digest_of(file))
    number = copy.path.stat().st_ino
    del copy

    assert immutable_copy(file, digest_of(file)).path.stat().st_ino != number


def test_a_system_without_files_in_memory_gets_a_private_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the user of the worker can write it."""
    monkeypatch.delattr(os, "memfd_create")
    copy = immutable_copy(file, digest_of(file))

    assert copy.path.read_bytes() == file.read_bytes()
    assert copy.path.stat().st_mode & 0o777 == 0o600
    path = copy.path
    del copy
    assert not path.exists()
    with pytest.raises(DigestMismatch):
        immutable_copy(file, "0" * 64)
    shutil.rmtree(file.parent)
