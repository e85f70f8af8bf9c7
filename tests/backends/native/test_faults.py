"""The recurrent library without memory: each of its allocations fails once, in a process of its own."""

import json
import subprocess
import sys
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from native_layers import CELLS, Shape, isas_here

from torchserve_neuron_lstm.backends import cpp_compiler
from torchserve_neuron_lstm.backends.native import build

HERE = Path(__file__).parent
pytestmark = [pytest.mark.xdist_group("kernel-faults"), pytest.mark.ci]
SHAPE, THREADS = Shape(hidden=17, layers=2, directions=2, projected=5), 3
MORE = [(Shape(cell, hidden=9, layers=1 + both, directions=1 + both), 1 + both) for cell in CELLS for both in (0, 1)]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("faults") / "faults.so"
    command = [
        *(cpp_compiler.compiler(), "-std=c++17", "-O1", "-fPIC", "-shared", "-pthread", f"-march={isas_here()[0]}"),
        *("-Wl,-Bsymbolic", "-Wl,--wrap=aligned_alloc", "-Wl,--wrap=free"),
        *(str(build.SOURCE), str(HERE / "faults.cpp"), "-o", str(file)),
    ]
    subprocess.run(command, check=True)
    return file


@cache
def outcomes(file: Path, shape: Shape, threads: int) -> list[dict[str, Any]]:
    """Results of the process: one for each allocation that failed, and a last one without a fault."""
    command = [sys.executable, str(HERE / "fault_loop.py"), str(file), json.dumps(asdict(shape)), str(threads)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout[-1000:] + ended.stderr[-2000:]
    return [json.loads(line) for line in ended.stdout.splitlines()]


@pytest.mark.long
@pytest.mark.timeout(600)  # threads wait for each other, which takes long on cores that do other work too
@pytest.mark.parametrize(
    ("shape", "threads"), [(SHAPE, THREADS), *(pytest.param(*one, marks=pytest.mark.long) for one in MORE)], ids=str
)
def test_every_allocation_can_fail(library: Path, shape: Shape, threads: int) -> None:
    *faults, without = outcomes(library, shape, threads)

    assert len(faults) > 20
    assert without == {"armed": True, "errors": [], "same": True, "live": 0}
    assert [fault for fault in faults if not fault["same"] or fault["live"]] == []


def test_an_allocation_that_fails_is_told(library: Path) -> None:
    *faults, _ = outcomes(library, SHAPE, THREADS)
    errors = [error for fault in faults for error in fault["errors"]]

    assert {error.partition(" over")[0].partition(": raise")[0] for error in errors} == {
        "LoadError: the system cannot start 3 threads",
        "MemoryError: out of memory for 2 recurrent layers of 17 hidden units",
        "MemoryError: out of memory for recurrences",
        "MemoryError: out of memory for a linear layer",
    }
    assert all(len(fault["errors"]) <= 1 for fault in faults)
    assert sum(not fault["errors"] for fault in faults) <= 3
