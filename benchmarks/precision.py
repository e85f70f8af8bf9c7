"""Gain of bfloat16 and int8 on this machine: OpenVINO, native, torch and ONNX Runtime, all in one run.

A contestant that needs instructions which this processor lacks is reported as not run.

Run it from the repository's root: `python -m benchmarks.precision [--threads 1] [--rounds 15]`.

They take turns, shape after shape, so that other load of the machine affects all. A figure is the ratio of the
least milliseconds of each. With a star, the ratio of the medians differs from it: the machine was busy, use neither.
`after another shape` is the first call in a shape that follows a call in another one, as in chunked execution.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from torchserve_neuron_lstm.archiver_ext.torch_threads import on_threads
from torchserve_neuron_lstm.backends import recurrent_operators as _recurrent_operators  # noqa: F401  registers the operators
from torchserve_neuron_lstm.backends.exported_tensors import weights_of
from torchserve_neuron_lstm.backends.interface import CompileError, CompileSettings, LoadedProgram, Precision
from torchserve_neuron_lstm.backends.registry import get_backend

from .standing import plain_table

MODELS = ((128, 256, 2), (300, 512, 1))
"""Features, hidden units, layers."""
SHAPES = ((1, 8), (1, 32), (4, 32), (8, 8), (8, 32), (16, 8), (16, 32), (32, 4), (32, 8), (32, 32))
"""Rows, timesteps."""
CONTESTANTS: Mapping[str, tuple[str, Precision]] = {
    "onnxruntime": ("onnxruntime", "float32"),
    "openvino float32": ("openvino", "float32"),
    "openvino bfloat16": ("openvino", "bfloat16"),
    "native float32": ("native", "float32"),
    "native bfloat16": ("native", "bfloat16"),
    "native int8": ("native", "int8"),
}
BASE = "onnxruntime"
_DISTURBED = 0.1
QUANTIZED = "torch int8"
"""Torch's own layers by `quantize_dynamic`, over packed sequences."""


class ChunkModel(nn.Module):
    """A stack of LSTM layers as a program for one chunk.

    Inputs include the states; outputs are the states of every timestep and the last ones.
    """

    def __init__(self, features: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.core = nn.LSTM(features, hidden, layers, batch_first=True)

    def forward(
        self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, lengths: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Map x[B, T, F], h and c[L, B, H], lengths[B] to y[B, T, H], h, c."""
        weights = [getattr(self.core, name) for name in self.core._flat_weights_names]  # noqa: SLF001 - torch has no public name for them
        answers: tuple[torch.Tensor, ...] = torch.ops.neuron_lstm.lstm(
            x, lengths, h, c, weights, True, self.core.num_layers, False, True
        )
        return answers


@dataclass
class Taken:
    """Milliseconds of one contestant in one shape."""

    switched: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)


def main() -> None:
    """Measure and print."""
    arguments = _arguments()
    warnings.simplefilter("ignore")
    for features, hidden, layers in MODELS:
        with tempfile.TemporaryDirectory() as directory:
            runs = _loaded(features, hidden, layers, arguments.threads, Path(directory))
        inputs = {shape: _inputs(shape, features, hidden, layers) for shape in SHAPES}
        title = f"{features} -> {hidden} x {layers}, {arguments.threads} thread(s)"
        taken = _measure(runs, inputs, arguments.rounds)
        console = Console(highlight=False)
        console.print(_table(title, {key: one.again for key, one in taken.items()}, list(runs)))
        console.print(_table("after another shape", {key: one.switched for key, one in taken.items()}, list(runs)))
        errors = _errors(runs, inputs)
        told = ", ".join(f"{label} {error:.1e}" for label, error in errors.items() if label != BASE)
        console.print(f"largest difference to {BASE}: {told}\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15, help="how often each contestant runs each shape thrice")
    return parser.parse_args()


def _inputs(shape: tuple[int, int], features: int, hidden: int, layers: int) -> list[torch.Tensor]:
    """Ragged rows with an initial state; the first row is as long as the shape."""
    rows, steps = shape
    states = [torch.rand(layers, rows, hidden) for _ in range(2)]
    lengths = torch.randint(1, steps + 1, (rows,))
    lengths[0] = steps
    return [torch.randn(rows, steps, features), *states, lengths]


def _loaded(features: int, hidden: int, layers: int, threads: int, directory: Path) -> dict[str, LoadedProgram]:
    torch.manual_seed(0)
    batch, steps = torch.export.Dim("batch", min=1), torch.export.Dim("steps", min=1)
    shapes = ({0: batch, 1: steps}, {1: batch}, {1: batch}, {0: batch})
    module = ChunkModel(features, hidden, layers).eval()
    example = tuple(_inputs((3, 7), features, hidden, layers))
    with torch.no_grad():
        program = torch.export.export(module, example, dynamic_shapes=shapes, strict=False)
    runs = {}
    for label, (name, precision) in CONTESTANTS.items():
        engine, place = get_backend(name), directory / label.replace(" ", "_")
        place.mkdir()
        try:
            engine.compile(program, None, place, CompileSettings(precision=precision))
        except CompileError as error:
            Console().print(f"{label}: not run: {error}")
            continue
        runs[label] = engine.load(place, weights_of(program), engine.host(), threads)
    runs[QUANTIZED] = on_threads(threads, _quantized(module.core))
    return runs


def _quantized(core: nn.LSTM) -> LoadedProgram:
    """Return the layers with weights of 8 bits as torch computes them: a function of x, h, c and lengths."""
    layers = torch.ao.quantization.quantize_dynamic(nn.Sequential(core), {nn.LSTM}, dtype=torch.qint8)[0]

    @torch.inference_mode()
    def run(inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        x, h, c, lengths = inputs
        states, last = layers(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False), (h, c))
        return pad_packed_sequence(states, batch_first=True)[0], *last

    return run


def _measure(
    runs: Mapping[str, LoadedProgram], inputs: Mapping[tuple[int, int], Sequence[torch.Tensor]], rounds: int
) -> dict[tuple[str, tuple[int, int]], Taken]:
    taken = {(label, shape): Taken() for label in runs for shape in inputs}
    for turn in range(rounds + 2):
        for shape, given in inputs.items():
            for label, run in runs.items():
                first, *rest = (_milliseconds(partial(run, given)) for _ in range(3))
                if turn >= 2:  # the first calls in a shape make kernels for it
                    taken[label, shape].switched.append(first)
                    taken[label, shape].again += rest
    return taken


def _milliseconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - started)


def _errors(
    runs: Mapping[str, LoadedProgram], inputs: Mapping[tuple[int, int], Sequence[torch.Tensor]]
) -> dict[str, float]:
    """The largest difference of each contestant from the base."""
    errors = dict.fromkeys(runs, 0.0)
    for given in inputs.values():
        right = runs[BASE](given)
        for label, run in runs.items():
            found = (float((a - b).abs().max()) for a, b in zip(run(given), right, strict=True))
            errors[label] = max(errors[label], *found)
    return errors


def _table(title: str, taken: Mapping[tuple[str, tuple[int, int]], list[float]], labels: Sequence[str]) -> Table:
    """A row for each shape: the base in milliseconds, and the others as parts of it."""
    table = plain_table(title)
    table.add_column("rows x\nsteps", no_wrap=True)
    table.add_column(f"{BASE}\nms", justify="right")
    others = [label for label in labels if label != BASE]
    for label in others:
        table.add_column(label.replace(" ", "\n"), justify="right")
    for rows, steps in dict.fromkeys(shape for _, shape in taken):
        base = taken[BASE, (rows, steps)]
        ratios = [ratio(taken[label, (rows, steps)], base) for label in others]
        table.add_row(f"{rows} x {steps}", f"{min(base):.2f}", *ratios)
    return table


def ratio(ours: Sequence[float], base: Sequence[float]) -> str:
    """Return the ratio of the least times; with a star if that of the medians is another by a tenth.

    >>> ratio([1.0, 1.1], [2.0, 2.1]), ratio([1.0, 9.0], [2.0, 2.1])
    ('0.50', '0.50*')
    """
    least, typical = min(ours) / min(base), median(ours) / median(base)
    return f"{least:.2f}{'*' * (abs(typical / least - 1) > _DISTURBED)}"


if __name__ == "__main__":
    main()
