"""Hosts of AWS's first accelerators have torch 1.13: the files of an archive use no newer names."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from torchserve_neuron_lstm.archiver_ext.archive.carried_files import carried_files

PACKAGE = Path(__file__).parents[1] / "src" / "torchserve_neuron_lstm"
_SINCE = ("uint16", "uint32", "uint64", "itemsize", "untyped_storage")
"""Names that torch has since 2.x, and that were used here before."""

_IMPORTS = """
import torch
for name in ("uint16", "uint32", "uint64", "export", "compiler"):
    delattr(torch, name)
from torchserve_neuron_lstm.backends.aws_neuron import neuron
from torchserve_neuron_lstm.backends.partitioning import partitioned_program
from torchserve_neuron_lstm.handlers import service
from torchserve_neuron_lstm.handlers.formats import v2
from torchserve_neuron_lstm.handlers.streaming import chunk_service as sessions
from torchserve_neuron_lstm.handlers.formats.npy import read_npy, write_npy
assert read_npy(write_npy(torch.tensor([1, 2]))).tolist() == [1, 2]
"""


@pytest.mark.parametrize("path", carried_files("neuron"), ids=Path.as_posix)
def test_no_file_names_what_torch_1_13_lacks(path: Path) -> None:
    tree = ast.parse((PACKAGE / path).read_text("utf-8"))

    assert [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in _SINCE] == []


@pytest.mark.ci
def test_the_serving_half_is_imported_by_a_torch_without_later_names() -> None:
    done = subprocess.run([sys.executable, "-c", _IMPORTS], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
