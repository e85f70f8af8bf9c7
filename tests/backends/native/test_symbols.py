"""The recurrent library runs on TorchServe's own image, whatever the system that compiles it."""

import re
from pathlib import Path

import pytest

from torchserve_neuron_lstm.archiver_ext.evaluation.lowest_torch import symbol_versions
from torchserve_neuron_lstm.backends.native import build
from torchserve_neuron_lstm.backends.native.instruction_sets import instruction_sets

IMAGE = {"GLIBC": "2.31", "GLIBCXX": "3.4.28", "CXXABI": "1.3.12"}
"""The libraries of Ubuntu 20.04."""


def numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def test_the_library_asks_for_no_symbol_that_the_image_lacks(tmp_path: Path) -> None:
    """Compilers on newer systems would use newer symbols for the same code."""
    build.build(tmp_path)
    libraries = list(tmp_path.glob("*.so"))
    found = symbol_versions(libraries)

    assert len(libraries) == len(instruction_sets())
    assert found.keys() == IMAGE.keys()
    assert {name: version for name, version in found.items() if numbers(version) > numbers(IMAGE[name])} == {}


@pytest.mark.parametrize("needed", [[], [b"GLIBC_2.14", b"GLIBC_2.9", b"GLIBCXX_3.4.30"]])
def test_the_highest_version_of_each_is_found(needed: list[bytes], tmp_path: Path) -> None:
    file = tmp_path / "some.so"
    file.write_bytes(b"\x7fELF\0MY_GLIBC_9.9\0GLIBC_PRIVATE\0" + b"".join(name + b"\0" for name in needed))

    assert symbol_versions([file]) == ({"GLIBC": "2.14", "GLIBCXX": "3.4.30"} if needed else {})
