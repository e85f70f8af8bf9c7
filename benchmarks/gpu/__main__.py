"""`python -m benchmarks.gpu`: the engine `cuda` compared with others on the first GPU, as a table.

Each contestant takes its inputs from the host and brings its outputs back; it is then measured by CUDA events with
its inputs on the GPU. Ratios are of medians in one run, in which the contestants take turns. Training is measured by
CUDA events.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from torchserve_neuron_lstm.backends.cuda.device import Device
from torchserve_neuron_lstm.backends.cuda.torch_device import TorchDevice, gpu_missing, gpu_name
from torchserve_neuron_lstm.backends.interface import Precision

from . import contestants
from .cases import CASES, Case
from .contestants import Contestant, LaunchedDevice, NotRun
from .report import CUDNN, OURS, CaseTimes, heading, rows
from .timing import device_ms, host_ms
from .training import TRAINING_HEADING, TRAININGS, training_calls, training_row


def main() -> int:
    """Measure and print; returns 1 where there is no GPU, or where the engine or training failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="cuda compared with others on a GPU")
    parser.add_argument("--rounds", type=int, default=50, help="rounds of each case (default: 50)")
    options = parser.parse_args()
    if (reason := gpu_missing()) is not None:
        print(f"not run: {reason}", file=sys.stderr)
        return 1
    # The engine computes in float32 as its tolerance asks for, so the others do so too.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    versions = f"torch {torch.__version__}, CUDA {torch.version.cuda}, Python {platform.python_version()}"
    _tell(heading(f"{gpu_name(None)}, {versions}; TF32 is off for all"))
    complete = True
    for case in CASES:
        times = measure(case, options.rounds)
        complete = complete and OURS in times.milliseconds
        _tell(rows(times))
    _tell(TRAINING_HEADING)
    for one in TRAININGS:
        try:
            steps = device_ms(training_calls(one, torch.device("cuda", 0)), max(5, options.rounds // 5), limit_s=5.0)
        except Exception as error:  # noqa: BLE001, PERF203 - after any exception the other lines follow
            complete = False
            _tell([f"| {one.setup}, {one.which} | {one.longest} | not run: {_reason(error)} | | | |"])
        else:
            _tell([training_row(one, steps)])
    return 0 if complete else 1


@dataclass(frozen=True)
class Compared:
    """The contestants of a case that have run once."""

    made: Mapping[str, Contestant]
    not_run: Mapping[str, str]
    """Reasons of the others."""
    errors: Mapping[str, float]
    """Largest differences of the engine from eager packed, by its precision."""


def measure(case: Case, rounds: int) -> CaseTimes:
    """Measure all contestants of a case that can run here."""
    with tempfile.TemporaryDirectory() as name:
        device = TorchDevice(0)
        compared = compare(case, Path(name), LaunchedDevice, device.torch_device)
        by_host = host_ms({name: one.call for name, one in compared.made.items()}, rounds)
        work = {name: one.enqueue for name, one in compared.made.items() if one.enqueue is not None}
        with device.current():
            on_gpu = device_ms(work, rounds)
        return CaseTimes(case.name, by_host, on_gpu, compared.not_run, compared.errors)


def compare(case: Case, folder: Path, device: Callable[..., Device], torch_device: torch.device) -> Compared:
    """Run all contestants of a case once; `device(0, own_kernel=...)` makes the engine's device."""

    def engine(name: str, precision: Precision = "float32", *, own_kernel: bool = True) -> Contestant:
        (folder / name).mkdir()
        return contestants.engine(case, device(0, own_kernel=own_kernel), folder / name, precision)

    makers: dict[str, Callable[[], Contestant]] = {
        OURS: lambda: engine("ours"),
        CUDNN: lambda: engine("cudnn", own_kernel=False),
        f"{OURS}, bfloat16": lambda: engine("bfloat16", "bfloat16"),
        f"{OURS}, float16": lambda: engine("float16", "float16"),
        "eager packed": lambda: contestants.packed(case, torch_device),
        "eager padded": lambda: contestants.padded(case, torch_device),
        "torch.compile reduce-overhead": lambda: contestants.compiled(case, torch_device),
        "ONNX Runtime CUDA": lambda: contestants.onnxruntime(case, _made(folder / "onnx")),
        "native, 2 cores": lambda: contestants.native(case, _made(folder / "native")),
    }
    made: dict[str, Contestant] = {}
    found: dict[str, Sequence[Tensor]] = {}
    not_run: dict[str, str] = {}
    for name, make in makers.items():
        try:
            one = make()
            found[name] = one.call()
        except Exception as error:  # noqa: BLE001, PERF203 - after any exception the others run
            not_run[name] = _reason(error)
        else:
            made[name] = one
    right = found.get("eager packed", ())
    errors = {name: _largest(found[name], right) for name in made if name.startswith(OURS) and right}
    return Compared(made, not_run, errors)


def _largest(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    return max(float((one - other).abs().max()) for one, other in zip(ours, theirs, strict=True))


def _reason(error: Exception) -> str:
    """The error of a contestant, in one line."""
    first = (str(error).splitlines() or [""])[0].replace("|", "/")
    return first if isinstance(error, NotRun) else f"{type(error).__name__}: {first[:200]}"


def _tell(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, flush=True)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


if __name__ == "__main__":
    raise SystemExit(main())
