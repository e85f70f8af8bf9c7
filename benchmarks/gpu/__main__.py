"""`python -m benchmarks.gpu`: the engine `cuda` beside its rivals on the first GPU, as a table.

Each contestant takes its inputs from the host and brings its outputs back. Ratios are of medians in one run, in which
the contestants take turns. Training is measured by CUDA events.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from torchserve_neuron_lstm.backends.cuda.torch_device import TorchDevice, gpu_missing

from . import contestants
from .cases import CASES, Case
from .contestants import Call, NotRun
from .report import OURS, CaseTimes, table
from .timing import device_ms, host_ms
from .training import TRAINED, training_calls


def main() -> int:
    """Measure and print; returns 1 where there is no GPU."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="cuda beside its rivals on a GPU")
    parser.add_argument("--rounds", type=int, default=50, help="rounds of each case (default: 50)")
    options = parser.parse_args()
    if (reason := gpu_missing()) is not None:
        print(f"not run: {reason}", file=sys.stderr)
        return 1
    device = TorchDevice(0)
    times = [measure(case, device, options.rounds) for case in CASES]
    machine = f"{device.name}, torch {torch.__version__}, CUDA {torch.version.cuda}, Python {platform.python_version()}"
    print(*table(times, machine), sep="\n")
    steps = device_ms(training_calls(device.torch_device), max(5, options.rounds // 5))
    print()
    print(f"| training, {TRAINED.name} | ms, CUDA events | times as long as lowered |")
    print("|---|---|---|")
    for name, ms in steps.items():
        print(f"| {name} | {ms:.2f} | {ms / steps['lowered']:.2f} |")
    return 0


def measure(case: Case, device: TorchDevice, rounds: int) -> CaseTimes:
    """Measure all contestants of a case that can run here."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        makers: dict[str, Callable[[], Call]] = {
            OURS: lambda: contestants.engine(case, device, _made(folder / "ours")),
            "eager packed": lambda: contestants.packed(case, device.torch_device),
            "eager padded": lambda: contestants.padded(case, device.torch_device),
            "torch.compile reduce-overhead": lambda: contestants.compiled(case, device.torch_device),
            "ONNX Runtime CUDA": lambda: contestants.onnxruntime(case, _made(folder / "onnx")),
            "native, 2 cores": lambda: contestants.native(case, _made(folder / "native")),
        }
        calls: dict[str, Call] = {}
        not_run: dict[str, str] = {}
        for contestant, make in makers.items():
            try:
                calls[contestant] = make()
            except NotRun as error:  # noqa: PERF203 - each is made once
                not_run[contestant] = str(error)
        pairs = zip(calls[OURS](), calls["eager packed"](), strict=True)
        largest = max(float((ours - theirs).abs().max()) for ours, theirs in pairs)
        return CaseTimes(case.name, host_ms(calls, rounds), not_run, largest)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


if __name__ == "__main__":
    raise SystemExit(main())
