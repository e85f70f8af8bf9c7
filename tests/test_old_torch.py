"""Hosts of AWS's first accelerators have torch 1.13: what travels in an archive asks it for nothing newer."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_SINCE = ("uint16", "uint32", "uint64", "itemsize", "untyped_storage")
"""Names that torch has had since 2.x and that were once used here."""

_IMPORTS = """
import torch
for name in ("uint16", "uint32", "uint64", "export", "compiler"):
    delattr(torch, name)
from torchserve_neuron_lstm.backends.aws_neuron import neuron
from torchserve_neuron_lstm.backends.partitioning import partitioned_program
from torchserve_neuron_lstm.handlers import service
from torchserve_neuron_lstm.handlers.formats import v2
from torchserve_neuron_lstm.handlers.streaming import service as sessions
from torchserve_neuron_lstm.handlers.formats.npy import read_npy, write_npy
assert read_npy(write_npy(torch.tensor([1, 2]))).tolist() == [1, 2]
"""


def serving_files() -> list[Path]:
    """What an archive for `neuron` carries."""
    folders = ("handlers", "bucketing", "sessions", "backends/aws_neuron")
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    names = (
        "eager",
        "exported_program",
        "interface",
        "registry",
        "signature",
        "weights",
    )
    return [*files, *(ROOT / "backends" / f"{name}.py" for name in names)]


@pytest.mark.parametrize("path", serving_files(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_file_names_what_torch_1_13_lacks(path: Path) -> None:
    """As an attribute of anything."""
    tree = ast.parse(path.read_text("utf-8"))

    assert [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in _SINCE] == []


def test_the_serving_half_is_imported_by_a_torch_without_later_names() -> None:
    """In a process of its own, which takes them from torch first."""
    done = subprocess.run([sys.executable, "-c", _IMPORTS], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
