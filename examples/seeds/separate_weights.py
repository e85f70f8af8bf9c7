"""Weights apart from the program, moved to a device and replaced.

Run with `python -m examples.seeds.separate_weights eager`.
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import torch

from torchserve_neuron_lstm import tracing

from .module import Model
from .shown import Engine, Shown


def show(engine: Engine) -> Shown:
    """Run the example on an engine that keeps weights apart."""
    shown = Shown(engine)
    model = Model()
    model.eval()
    example_inputs = torch.rand(1, 1, 3, 3)
    trace = tracing.trace(model, example_inputs, inline_weights_to_neff=False, backend=engine.name, **engine.options)
    with tempfile.TemporaryDirectory() as folder:
        trace.save(Path(folder) / "model.traced")
        loaded = tracing.load(Path(folder) / "model.traced")
    tracing.move_trace_to_device(loaded, 0)
    x = torch.rand(1, 1, 3, 3)
    shown.compare(loaded(x), model(x).detach())

    # Other weights of the same names, shapes and dtypes, without compiling.
    other = Model()
    other.eval()
    tracing.replace_weights(loaded, other)
    shown.compare(loaded(x), other(x).detach())
    tracing.replace_weights(loaded, model.state_dict())
    shown.compare(loaded(x), model(x).detach())
    shown.refuses(ValueError, lambda: tracing.replace_weights(loaded, {"conv.weight": torch.zeros(1, 1, 3, 3)}))
    shown.refuses(ValueError, lambda: tracing.move_trace_to_device(loaded, 1_000))

    # Inlined weights stay, with a warning.
    inlined = tracing.trace(model, example_inputs, backend=engine.name, **engine.options)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        tracing.replace_weights(inlined, other)
    shown.refused += [str(one.message) for one in told if "inlined" in str(one.message)]
    if len(shown.refused) != 3:
        raise AssertionError("inlined weights must be warned of")
    shown.compare(inlined(x), model(x).detach())
    return shown


if __name__ == "__main__":
    from .command_line import main

    raise SystemExit(main(show))
