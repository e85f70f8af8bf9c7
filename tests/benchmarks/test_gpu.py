"""The comparison on a GPU: its contestants agree, and it says so where there is no GPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from benchmarks.gpu import contestants
from benchmarks.gpu.__main__ import compare
from benchmarks.gpu.cases import Case, triangle
from benchmarks.gpu.contestants import NotRun
from benchmarks.gpu.report import CaseTimes, rows
from benchmarks.gpu.timing import host_ms
from benchmarks.gpu.training import TRAININGS, Training, training_calls, training_row
from graph_device import GraphDevice
from torch_kernel import TorchKernel

from torchserve_neuron_lstm.backends.cuda.torch_device import gpu_missing

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")


@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_engine_computes_what_its_rivals_do(bidirectional: bool, tmp_path: Path) -> None:
    """On a double of a GPU, for ragged rows."""
    case = Case("small", triangle(4, 6), 3, 5, 2, bidirectional)
    ours = contestants.engine(case, GraphDevice(kernel=TorchKernel()), tmp_path).call()
    packed = contestants.packed(case, CPU).call()

    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(ours, packed, strict=True))


def test_the_padded_model_is_left_out_where_it_is_wrong() -> None:
    """The reverse direction would begin in the padding; in one direction the last states are right."""
    with pytest.raises(NotRun, match="reverse direction"):
        contestants.padded(Case("small", (2, 3), 3, 5, 1, bidirectional=True), CPU)
    case = Case("small", triangle(4, 6), 3, 5, 1)

    assert torch.allclose(contestants.padded(case, CPU).call()[1], contestants.packed(case, CPU).call()[1], atol=1e-5)


def test_training_has_all_contestants() -> None:
    """Each runs a step, and the table has its time."""
    milliseconds = host_ms(training_calls(Training("B", "forward and backward", 6), CPU, rows=4), rounds=1)

    assert training_row(TRAININGS[-1], milliseconds).startswith("| B, forward and backward | 256 | ")


def double(_index: int, *, own_kernel: bool) -> GraphDevice:
    """A double of the first GPU."""
    return GraphDevice(kernel=TorchKernel() if own_kernel else None)


def test_a_contestant_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The table names its error in one line; the engine's precisions are compared with eager packed."""

    def broken(case: Case, *_: object) -> Callable[[], list[torch.Tensor]]:
        raise RuntimeError("no kernel | for this GPU\nmore")

    for name in ("compiled", "native", "onnxruntime"):
        monkeypatch.setattr(contestants, name, broken)
    found = compare(Case("small", triangle(4, 6), 3, 5, 2), tmp_path, double, CPU)

    assert [*found.made] == [
        "cuda", "cuda, cuDNN's kernels", "cuda, bfloat16", "cuda, float16", "eager packed", "eager padded"
    ]  # fmt: skip
    assert {*found.not_run.values()} == {"RuntimeError: no kernel / for this GPU"}
    errors = found.errors
    assert max(errors["cuda"], errors["cuda, cuDNN's kernels"]) <= 1e-5
    assert 1e-5 < errors["cuda, float16"] < errors["cuda, bfloat16"] < 3e-2


def test_without_the_engine_there_are_no_ratios() -> None:
    """The milliseconds of the others are told nevertheless."""
    times = CaseTimes("small", {"eager packed": 2.0}, {}, {"cuda": "OutOfMemory: too small"}, {})
    assert [*rows(times)] == [
        "| small | eager packed | 2.000 | | | |",
        "| | cuda | not run: OutOfMemory: too small | | | |",
    ]


@pytest.mark.skipif(gpu_missing() is None, reason="not run: there is a GPU")
def test_without_a_gpu_it_ends_with_a_plain_message() -> None:
    """The message says what is missing; there is no traceback."""
    command = [sys.executable, "-m", "benchmarks.gpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)

    assert done.returncode == 1
    assert done.stderr.startswith("not run: ")
    assert "Traceback" not in done.stderr
