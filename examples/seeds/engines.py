"""Engines of the examples: those that run here and in which mode, and those that are absent and why."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from torchserve_neuron_lstm.backends.registry import get_backend

from .shown import Engine

ACCELERATOR = "ia_840f_c3b64"
ENGINES = (
    Engine("eager"),
    Engine("native"),
    Engine("onnxruntime"),
    Engine("openvino"),
    Engine("inductor"),
    Engine("neuronx", {"compiler_args": "--target trn1", "cpu_backend": True}),
    Engine("neuron"),
    Engine("vollo", {"compiler_args": ["--config", ACCELERATOR]}, tolerance=1e-2),
)

_AWS = {"neuronx": "torch_neuronx", "neuron": "torch_neuron"}
_DOUBLES = Path(__file__).parents[2] / "tests" / "support" / "doubles"


def engine_named(name: str) -> Engine:
    """The engine with the options that it needs here."""
    return next((engine for engine in ENGINES if engine.name == name), Engine(name))


@contextmanager
def neuron_stood_in() -> Iterator[None]:
    """Provide doubles of the documented contract if neither of AWS's packages is here.

    Processes that are started from here get them too.
    """
    if any(map(find_spec, _AWS.values())) or not _DOUBLES.is_dir():
        yield
        return
    before = os.environ.get("PYTHONPATH")
    sys.path.append(str(_DOUBLES))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [before, str(_DOUBLES)]))
    try:
        yield
    finally:
        sys.path.remove(str(_DOUBLES))
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before


def not_here(engine: Engine) -> str | None:
    """Return the reason why an engine cannot run, or None."""
    if engine.name == "vollo" and find_spec("vollo_compiler") is None:
        return "extra [vollo] not installed (proprietary EULA)"
    return get_backend(engine.name).unavailable()


def what_runs(engine: Engine) -> str:
    """The source of the answers: the engine itself, a virtual machine of its device, or a contract double."""
    if engine.name in _AWS:
        return "contract double" if getattr(import_module(_AWS[engine.name]), "__double__", False) else "NeuronCore"
    if engine.name == "vollo":
        simulation = getattr(get_backend(engine.name), "simulation", None)
        return "VM" if simulation is not None and simulation() else "accelerator"
    return "real engine"
