"""Weights of a loaded archive: mapped from its checked files, so that workers share their pages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from torchserve_neuron_lstm.backends.weights import read_weights
from torchserve_neuron_lstm.handlers.runtime.loader import load_archive


def is_mapped(address: int, path: Path) -> bool:
    """Whether the address is in a mapping of the file into this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(number, 16) for number in line.split(maxsplit=1)[0].split("-"))
        if begin <= address < end:
            return line.endswith(str(path))
    return False


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_tensors_are_pages_of_the_file(tmp_path: Path, suffix: str) -> None:
    """The page cache holds them once for all workers."""
    path, state = tmp_path / f"weights{suffix}", {"w": torch.arange(1_000_000, dtype=torch.float32)}
    if suffix == ".pt":
        torch.save(state, path)
    else:
        save_file(state, path)

    tensor = read_weights(path)["w"]

    assert is_mapped(tensor.data_ptr(), path)
    assert torch.equal(tensor, state["w"])


@pytest.mark.parametrize("size", [0, 10, 700])
def test_a_cut_file_is_an_error_that_names_it(archive: Path, size: int) -> None:
    os.truncate(archive / "weights.pt", size)

    with pytest.raises(RuntimeError, match=r"weights\.pt was changed"):
        load_archive(archive, threads=1)
