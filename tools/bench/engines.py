"""`make bench`: this engine compared with others, and with the cores' multiply-adds.

Every contestant starts from the same list of unpadded requests in random order and ends with the list of unpadded
outputs. Tensors are time-major, so that no contestant transposes. docs/benchmarks.md describes the contestants.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median

# Both are read when the libraries are first imported.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # the exporter warns about shapes that it does not infer
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import torch
from torch.nn.utils.rnn import pad_sequence

from torchserve_neuron_lstm.archiver_ext.torch_threads import on_threads
from torchserve_neuron_lstm.backends import cpp_compiler
from torchserve_neuron_lstm.backends.cores import available_cores
from torchserve_neuron_lstm.handlers.runtime.loader import load_archive

from .harness import BenchmarkFailed, Call, host_seconds, package, ratio, refuse_differences, take_turns, tell
from .models.ragged import Ragged
from .onnx_session import RAGGED, export, open_session
from .ragged import CASES, LONGEST, Case, Size
from .report import Result, Row, Table

OURS = "this engine"
TOLERANCES = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 1e-2, "int8": 5e-2}
"""Largest error of an output, absolute and relative, by the precision of the archive."""
_FMA = "FMA"
_SOURCE = Path(__file__).with_name("fma.cpp")
_TIMES = 3_000_000
"""Repetitions in a call, which takes 4 to 20 ms: starting its threads, about 0.1 ms, does not count."""
_CONFIG = """\
neuron_lstm:
  model: {{args: {{features: {0.features}, hidden: {0.hidden}, layers: {0.layers}, bidirectional: {0.bidirectional}}}}}
  inputs:
    frames: {{dtype: float32, shape: [time, batch, {0.features}]}}
  lengths: lengths
  outputs: [states, last]
  buckets: {{batch: [1, 8, 32], length: [16, 64, 128, {longest}]}}
  backend: {backend}
  precision: {precision}
"""

Answer = tuple[torch.Tensor, torch.Tensor]
"""Outputs of one request: the states of every timestep [T, D x H], the last states [D x H]."""

Contestant = Callable[[Sequence[torch.Tensor]], list[Answer]]
"""A function from requests [T, F], of any lengths, to their answers, in order."""


class FmaLoop:
    """A loop of fused multiply-adds, compiled for the cores; a call runs it on each. No program is faster."""

    def __init__(self, threads: int, folder: Path) -> None:
        """Compile the loop into `folder`; raises `BenchmarkFailed` without a C++ compiler that does."""
        library = folder / "fma.so"
        options = ["-std=c++17", "-O3", "-march=native", "-ffp-contract=fast", "-fPIC", "-shared", "-pthread"]
        try:
            subprocess.run([cpp_compiler.compiler(), *options, str(_SOURCE), "-o", str(library)], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise BenchmarkFailed(f"{error}: install g++, or name your C++ compiler in CXX") from None
        code = ctypes.CDLL(str(library))
        code.fma_operations.restype = ctypes.c_int64
        code.fma_run.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int64]
        code.fma_run.restype = ctypes.c_float
        cores = sorted(os.sched_getaffinity(0))[:threads]
        self._cores = (ctypes.c_int * len(cores))(*cores)
        self._run = code.fma_run
        self._flop: int = code.fma_operations() * _TIMES * len(cores)

    def __call__(self) -> None:
        """Run the loop on every core."""
        self._run(ctypes.addressof(self._cores), len(self._cores), _TIMES)

    def gflops(self, seconds: Sequence[float]) -> float:
        """Return the best rate of some calls, in GFLOP/s."""
        return self._flop / min(seconds) / 1e9


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the program's options."""
    parser.add_argument("--rounds", type=int, default=11, help="turns of each contestant (default: %(default)s)")
    parser.add_argument(
        "--precisions", nargs="*", default=[], choices=[*TOLERANCES][1:], help="further archives of this engine"
    )


def measure(options: argparse.Namespace) -> Result:
    """Package, compare with eager mode, and time in turns."""
    threads = available_cores()
    torch.set_num_threads(threads)
    rows: list[Row] = []
    fma: list[float] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        loop = FmaLoop(threads, Path(folder))
        for number, size in enumerate(dict.fromkeys(case.size for case in CASES)):
            torch.manual_seed(0)
            model = Ragged(size.features, size.hidden, size.layers, size.bidirectional).eval()
            contestants = _contestants(model, size, Path(folder) / str(number), options, threads)
            for case in (case for case in CASES if case.size == size):
                tell(f"measuring {case}")
                seconds = _seconds(case, model, contestants, loop, options.rounds)
                fma += seconds[_FMA]
                rows += _rows(case, seconds, loop)
    rates = f"FMA: {loop.gflops(fma):.0f} GFLOP/s at best, in the median {min(fma) / median(fma):.2f} of that."
    return Result([Table("Ragged batches", rows)], [rates])


def _contestants(
    model: Ragged, size: Size, folder: Path, options: argparse.Namespace, threads: int
) -> dict[str, tuple[Contestant, float]]:
    """Make all contestants of a model, with the largest error that each may have."""
    folder.mkdir()

    def served(name: str, backend: str, precision: str = "float32") -> tuple[Contestant, float]:
        tell(f"packaging {size} with {backend}, {precision}")
        config = _CONFIG.format(size, longest=LONGEST, backend=backend, precision=precision)
        package(model, config, folder, name, "--archive-format", "no-archive")
        return _served(folder / name, threads), TOLERANCES[precision]

    exact = TOLERANCES["float32"]
    contestants = {
        OURS: served("ours", "native"),
        **{f"{OURS}, {precision}": served(precision, "native", precision) for precision in options.precisions},
        "ONNX Runtime planned": served("planned", "onnxruntime"),
        "ONNX Runtime padded": (on_threads(threads, _onnx_padded(model, folder / "model.onnx", threads)), exact),
        "eager packed": (on_threads(threads, _padded(model)), exact),
    }
    if model.directions == 1:
        contestants["eager padded"] = on_threads(threads, _eager_padded(model)), exact
    return contestants


def _seconds(
    case: Case, model: Ragged, contestants: dict[str, tuple[Contestant, float]], loop: FmaLoop, rounds: int
) -> dict[str, tuple[float, ...]]:
    """Compare the answers with eager mode, each request alone; then return the seconds of all batches by contestant."""
    torch.manual_seed(0)
    batches = [[torch.randn(length, case.size.features) for length in batch] for batch in case.batches]
    expected = [[*_alone(model, batch)] for batch in batches]
    calls: dict[str, Call] = {_FMA: loop}
    for name, (contestant, tolerance) in contestants.items():
        for batch, answers in zip(batches, expected, strict=True):
            for answer, right in zip(contestant(batch), answers, strict=True):
                refuse_differences(f"{name} on {case}", answer, right, tolerance)
        calls[name] = partial(lambda answers: [answers(batch) for batch in batches], contestant)
    return take_turns(calls, host_seconds, rounds, pause_s=0.03)


def _rows(case: Case, seconds: dict[str, tuple[float, ...]], loop: FmaLoop) -> Iterator[Row]:
    fma = loop.gflops(seconds[_FMA])
    for name, taken in seconds.items():
        if name != _FMA:
            figures = {
                "useful GFLOP/s": case.flop / median(taken) / 1e9,
                "share of FMA": case.flop / median(taken) / 1e9 / fma,
                "at best": case.flop / min(taken) / 1e9 / fma,
                "ms a batch": 1000 * median(taken) / len(case.batches),
                f"times as long as {OURS}": ratio(taken, seconds[OURS]),
            }
            yield Row(str(case), name, figures, taken)


@torch.inference_mode()
def _alone(model: Ragged, requests: Sequence[torch.Tensor]) -> list[Answer]:
    """Compute the reference: the model in eager mode, each request by itself."""
    singles = [model(request[:, None], torch.tensor([len(request)])) for request in requests]
    return [(states[:, 0], last[0]) for states, last in singles]


def _served(archive: Path, threads: int) -> Contestant:
    """Return the unpacked archive, loaded, planned and run as in the handler."""
    variants = load_archive(archive, threads)
    serving = torch.get_num_threads()  # those of torch: an engine may have other threads

    def answer(requests: Sequence[torch.Tensor]) -> list[Answer]:
        lengths = [*map(len, requests)]
        answers, _ = variants.run_plan(variants.plan(lengths), [(request,) for request in requests], lengths)
        return [(states, last) for states, last in answers]

    return on_threads(serving, answer)


def _onnx_padded(model: Ragged, file: Path, threads: int) -> Contestant:
    """Return ONNX Runtime over the padded batch: torch's own export, with `sequence_lens` for the LSTM operator."""
    export(model, torch.zeros(3, 2, model.lstm.input_size), RAGGED, file)
    session = open_session(file, threads)

    def run(frames: torch.Tensor, lengths: torch.Tensor) -> Answer:
        states, last = session.run(None, {"frames": frames.numpy(), "lengths": lengths.numpy()})
        return torch.from_numpy(states), torch.from_numpy(last)

    return _padded(run)


def _eager_padded(model: Ragged) -> Contestant:
    """Return nn.LSTM over the padded batch, which oneDNN runs: right in one direction, whose padding comes last."""

    def run(frames: torch.Tensor, lengths: torch.Tensor) -> Answer:
        states, _ = model.lstm(frames)
        return states, states[lengths - 1, torch.arange(len(lengths))]

    return _padded(run)


def _padded(run: Callable[[torch.Tensor, torch.Tensor], Answer]) -> Contestant:
    """Return a contestant that pads, and returns views of the answers: the cheapest way for a user."""

    @torch.inference_mode()
    def answer(requests: Sequence[torch.Tensor]) -> list[Answer]:
        lengths = [*map(len, requests)]
        states, last = run(pad_sequence(list(requests)), torch.tensor(lengths))
        return [(states[:length, row], last[row]) for row, length in enumerate(lengths)]

    return answer
