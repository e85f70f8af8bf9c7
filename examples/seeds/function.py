"""A plain function of two tensors, traced, saved, loaded and run.

Run with `python -m examples.seeds.function onnxruntime`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from torchserve_neuron_lstm import tracing

from .shown import Engine, Shown


def func(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Double and add: the function that is traced."""
    return 2 * x + y


def show(engine: Engine) -> Shown:
    """Run the example on an engine."""
    shown = Shown(engine)
    example_inputs = torch.rand(3), torch.rand(3)
    trace = tracing.trace(func, example_inputs, backend=engine.name, **engine.options)
    with tempfile.TemporaryDirectory() as folder:
        trace.save(Path(folder) / "func.traced")
        loaded = tracing.load(Path(folder) / "func.traced")
    x, y = torch.rand(3), torch.rand(3)
    shown.compare(loaded(x, y), func(x, y))

    # Shapes and dtypes are fixed.
    shown.refuses(tracing.WrongInput, lambda: loaded(torch.rand(4), torch.rand(4)))
    shown.refuses(tracing.WrongInput, lambda: loaded(x.double(), y.double()))
    return shown


if __name__ == "__main__":
    from .command_line import main

    raise SystemExit(main(show))
