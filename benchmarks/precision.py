"""Gain of bfloat16 on this machine: OpenVINO, native and ONNX Runtime, all in one run.

A contestant that needs instructions which this processor lacks is told as not run.

Run it from the repository's root: `python -m benchmarks.precision [--threads 1] [--rounds 15]`.

They take turns, shape after shape, so that other load of the machine affects all. A figure is the ratio of the
least milliseconds of each. The ratio of the medians is beside it. If the two differ, the machine was busy: use neither.
`after another shape` is the first call in a shape that follows a call in another one, as in chunked execution.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from torchserve_neuron_lstm.backends import recurrent_operators as _recurrent_operators  # noqa: F401  registers the operators
from torchserve_neuron_lstm.backends.interface import CompileError, CompileSettings, LoadedProgram, Precision
from torchserve_neuron_lstm.backends.registry import get_backend
from torchserve_neuron_lstm.backends.signature import weights_of

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
}
BASE = "onnxruntime"


class Piece(nn.Module):
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
        weights = [getattr(self.core, name) for name in self.core._flat_weights_names]  # noqa: SLF001
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
        Console().print(_table(title, _measure(runs, inputs, arguments.rounds), _errors(runs, inputs)))


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
    module = Piece(features, hidden, layers).eval()
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
    return runs


def _measure(
    runs: Mapping[str, LoadedProgram], inputs: Mapping[tuple[int, int], Sequence[torch.Tensor]], rounds: int
) -> dict[tuple[str, tuple[int, int]], Taken]:
    taken = {(label, shape): Taken() for label in runs for shape in inputs}
    for turn in range(rounds + 2):
        for shape, given in inputs.items():
            for label, run in runs.items():
                first, *rest = (_milliseconds(lambda run=run, given=given: run(given)) for _ in range(3))  # type: ignore[misc]
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


def _table(title: str, taken: Mapping[tuple[str, tuple[int, int]], Taken], errors: Mapping[str, float]) -> Table:
    told = ", ".join(f"{label} {error:.1e}" for label, error in errors.items() if label != BASE)
    table = Table("rows x steps", f"{BASE} ms", title=title, caption=f"largest difference to {BASE}: {told}")
    rivals = [label for label in errors if label != BASE]
    for label in rivals:
        table.add_column(f"{label}\n/ {BASE} (medians)", justify="right")
        table.add_column("after another\nshape", justify="right")
    for shape in dict.fromkeys(shape for _, shape in taken):
        base = taken[BASE, shape]
        cells = [f"{shape[0]} x {shape[1]}", f"{min(base.again):.2f}"]
        for label in rivals:
            ours = taken[label, shape]
            typical = median(ours.again) / median(base.again)
            cells.append(f"{min(ours.again) / min(base.again):.2f} ({typical:.2f})")
            cells.append(f"{min(ours.switched) / min(base.switched):.2f}")
        table.add_row(*cells)
    return table


if __name__ == "__main__":
    main()
