"""`make bench-gpu`: the engine `cuda` compared with others on the first GPU, and training.

Each contestant takes its inputs from the host and brings its outputs back; it is then measured by CUDA events with
its inputs on the GPU. Contestants take turns in one run. TF32 is off for all.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from torchserve_neuron_lstm.backends import recurrent_operators as _recurrent_operators  # noqa: F401  registers them
from torchserve_neuron_lstm.backends.cuda.engine import Cuda, load_on_device
from torchserve_neuron_lstm.backends.cuda.torch_device import TorchDevice, gpu_missing, gpu_name
from torchserve_neuron_lstm.backends.exported_tensors import weights_of
from torchserve_neuron_lstm.backends.interface import CompileSettings, Precision
from torchserve_neuron_lstm.backends.registry import get_backend

from .harness import BenchmarkFailed, device_seconds, host_seconds, ratio, take_turns, tell
from .ragged import MIDDLE, Case, Size, triangle
from .report import Result, Row, Table
from .train import BATCH, rows_of

OURS = "cuda"


class NotRun(RuntimeError):
    """A contestant that is not here, or that would be wrong."""


_LENGTHS = tuple(range(128, 0, -4))
CASES = (
    Case("B=32 triangle", MIDDLE, (_LENGTHS,)),
    Case("B=32 triangle", Size(128, 256, 2, bidirectional=True), (_LENGTHS,)),
    Case("B=256 triangle", MIDDLE, (tuple(sorted(triangle(256, 1), reverse=True)),)),
    Case("one request of 20 timesteps", MIDDLE, ((20,),)),
)
"""One batch each, the longest request first."""


def make_layer(size: Size) -> nn.LSTM:
    """Return the layers with the same weights each time."""
    torch.manual_seed(0)
    return nn.LSTM(size.features, size.hidden, size.layers, batch_first=True, bidirectional=size.bidirectional).eval()


def draw_inputs(case: Case) -> tuple[Tensor, Tensor]:
    """Return x[B, T, F] with zeros on padding, and lengths[B], on the CPU."""
    torch.manual_seed(1)
    lengths = torch.tensor(case.batches[0])
    x = torch.randn(len(lengths), int(lengths[0]), case.size.features)
    padding = torch.arange(x.shape[1])[None, :] >= lengths[:, None]
    return x.masked_fill(padding[:, :, None], 0.0), lengths


class Masked(nn.Module):
    """The layers as the lowered operator: exact for every row."""

    def __init__(self, layer: nn.LSTM) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return y[B, T, D*H] and h_n[L*D, B, H]."""
        layer = self.layer
        rows = layer.num_layers * (2 if layer.bidirectional else 1)
        state = torch.zeros(rows, x.shape[0], layer.hidden_size, dtype=x.dtype, device=x.device)
        weights = [getattr(layer, name) for name in layer._flat_weights_names]  # noqa: SLF001 - torch has no other list
        y, h_n, _ = torch.ops.neuron_lstm.lstm(
            x, lengths, state, state, weights, layer.bias, layer.num_layers, layer.bidirectional, False
        )
        return y, h_n


def packed(layer: nn.LSTM, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Run the layers over packed rows, which is what users write; lengths are on the CPU."""
    y, (h_n, _) = layer(pack_padded_sequence(x, lengths, batch_first=True))
    return pad_packed_sequence(y, batch_first=True)[0], h_n


def padded(layer: nn.LSTM, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Run the layers over padded rows, and gather the last real state: right in one direction only."""
    y, _ = layer(x)
    last = (lengths - 1)[:, None, None].expand(-1, 1, y.shape[2])
    return y, y.gather(1, last).transpose(0, 1)


@dataclass(frozen=True)
class Contestant:
    """Two ways to call a program."""

    call: Callable[[], Sequence[Tensor]]
    """From the host and back."""
    enqueue: Callable[[], object] | None = None
    """Its work on the current stream, without copies; None: it has none that can be had alone."""


class LaunchedDevice(TorchDevice):
    """A GPU that keeps the launch of the last graph."""

    launch: Callable[[], None]

    def capture(self, body: Callable[[], None]) -> Callable[[], None]:
        """Record a function."""
        self.launch = super().capture(body)
        return self.launch


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the program's options."""
    parser.add_argument("--rounds", type=int, default=50, help="rounds of each case (default: %(default)s)")


def measure(options: argparse.Namespace) -> Result:
    """Measure all cases and training; raises `BenchmarkFailed` if there is no GPU, or the engine did not run."""
    if (reason := gpu_missing()) is not None:
        raise BenchmarkFailed(f"not run: {reason}")
    # The engine computes in float32 as its tolerance asks for, so the others do so too.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    rows = [row for case in CASES for row in _measured(case, options.rounds)]
    device = torch.device("cuda", 0)
    training = [*rows_of((32, 64, 128, 256), BATCH, device, max(5, options.rounds // 5), compiles=False)]
    title = f"{gpu_name(None)}, CUDA {torch.version.cuda}"
    result = Result([Table(title, rows), Table(f"Training on the same, batches of {BATCH}", training)])
    if any(row.contestant == OURS and "not run" in row.figures for row in rows):
        raise BenchmarkFailed(f"the engine did not run: {[row.figures for row in rows if row.contestant == OURS]}")
    return result


def _measured(case: Case, rounds: int) -> Iterator[Row]:
    tell(f"measuring {case}")
    with tempfile.TemporaryDirectory() as name:
        device = TorchDevice(0)
        contestants, reasons, errors = compare(case, Path(name), LaunchedDevice, device.torch_device)
        turns = partial(take_turns, rounds=rounds, slice_s=0.0, limit_s=15.0, fewest=5)
        seconds = turns({name: contestant.call for name, contestant in contestants.items()}, host_seconds)
        work = {name: made.enqueue for name, made in contestants.items() if made.enqueue is not None}
        with device.current():
            on_gpu = turns(work, device_seconds)
    for contestant, taken in seconds.items():
        figures: dict[str, float | str] = {"ms, host to host": 1000 * median(taken)}
        if OURS in seconds:
            figures[f"times as long as {OURS}"] = ratio(taken, seconds[OURS])
        if contestant in on_gpu:
            figures["ms on the GPU"] = 1000 * median(on_gpu[contestant])
        if contestant in errors:
            figures["largest error"] = f"{errors[contestant]:.1e}"
        yield Row(str(case), contestant, figures, taken)
    for contestant, reason in reasons.items():
        yield Row(str(case), contestant, {"not run": reason})


def compare(
    case: Case, folder: Path, device: Callable[..., TorchDevice], torch_device: torch.device
) -> tuple[dict[str, Contestant], dict[str, str], dict[str, float]]:
    """Run all contestants of a case once; `device(0, own_kernel=...)` makes the engine's device.

    Returns those that ran, the reasons of the others, and the largest differences of the engine from eager packed.
    """

    def engine(name: str, precision: Precision = "float32", *, own_kernel: bool = True) -> Contestant:
        made = device(0, own_kernel=own_kernel)
        if own_kernel and made.kernel is None:
            raise NotRun("the kernel for recurrent layers cannot run on this GPU")
        return _engine(case, made, folder / name, precision)

    layer = make_layer(case.size).to(torch_device)
    makers: dict[str, Callable[[], Contestant]] = {
        OURS: lambda: engine("ours"),
        f"{OURS}, cuDNN's kernels": lambda: engine("cudnn", own_kernel=False),
        f"{OURS}, bfloat16": lambda: engine("bfloat16", "bfloat16"),
        f"{OURS}, float16": lambda: engine("float16", "float16"),
        "eager packed": lambda: _from_host(partial(packed, layer), case, torch_device, on_host=True),
        "eager padded": lambda: _from_host(_one_direction(case, layer), case, torch_device),
        "torch.compile reduce-overhead": lambda: _from_host(
            torch.compile(_one_direction(case, layer), mode="reduce-overhead"), case, torch_device
        ),
        "native, 2 cores": lambda: _native(case, folder / "native"),
    }
    made: dict[str, Contestant] = {}
    outputs: dict[str, Sequence[Tensor]] = {}
    reasons: dict[str, str] = {}
    for name, make in makers.items():
        try:
            contestant = make()
            outputs[name] = contestant.call()
        except Exception as error:  # noqa: BLE001, PERF203 - after any exception the others run
            first = (str(error).splitlines() or [""])[0]
            reasons[name] = first if isinstance(error, NotRun) else f"{type(error).__name__}: {first[:200]}"
        else:
            made[name] = contestant
    right = outputs.get("eager packed", ())
    errors = {
        name: max(float((a - b).abs().max()) for a, b in zip(ours, right, strict=True))
        for name, ours in outputs.items()
        if name.startswith(OURS) and right
    }
    return made, reasons, errors


def _engine(case: Case, device: TorchDevice, folder: Path, precision: Precision) -> Contestant:
    """Return the engine `cuda`, with its graph captured."""
    folder.mkdir()
    inputs, program = draw_inputs(case), _exported(case)
    Cuda().compile(program, None, folder, CompileSettings(precision))
    run = load_on_device(device, {"sequence": folder}, weights_of(program))["sequence"]
    run(inputs)
    return Contestant(lambda: run(inputs), device.launch if isinstance(device, LaunchedDevice) else None)


def _native(case: Case, folder: Path) -> Contestant:
    folder.mkdir()
    backend = get_backend("native")
    inputs, program = draw_inputs(case), _exported(case)
    backend.compile(program, None, folder)
    run = backend.load(folder, weights_of(program), backend.host(), 2)
    return Contestant(lambda: run(inputs))


def _one_direction(case: Case, layer: nn.LSTM) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    if case.size.bidirectional:
        raise NotRun("wrong: padding comes first in the reverse direction")
    return partial(padded, layer)


def _exported(case: Case) -> torch.export.ExportedProgram:
    """Return the lowered layers as an exported program of the batch's sizes."""
    with torch.no_grad():
        return torch.export.export(Masked(make_layer(case.size)), draw_inputs(case), strict=False)


def _from_host(run: Callable[..., Any], case: Case, device: torch.device, *, on_host: bool = False) -> Contestant:
    """Return a function of torch; with `on_host`, its lengths stay on the CPU."""
    x, lengths = draw_inputs(case)
    x_there, lengths_there = x.to(device), lengths if on_host else lengths.to(device)

    @torch.no_grad()
    def call() -> Sequence[Tensor]:
        outputs = run(x.to(device), lengths if on_host else lengths.to(device))
        return [tensor.cpu() for tensor in outputs]

    @torch.no_grad()
    def enqueue() -> None:
        run(x_there, lengths_there)

    return Contestant(call, enqueue)
