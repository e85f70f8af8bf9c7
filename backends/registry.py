"""Table of engines: their names, and their order under `auto`.

A new engine is its own file or folder and one row in `ENGINES`. An engine is imported when it is requested, since an
archive carries only one. A model that is not lowered is served by `eager`, and its recurrent layers by the library of
`native`: they are not tried for that.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Literal, Optional, Union

from .interface import Backend, LoadError, Precision

ENTRY_POINT_GROUP = "torchserve_neuron_lstm.backends"
"""Group of entry points that name a `Backend` class. The name of the entry point is that of the engine."""

Purpose = Union[Precision, Literal["fallback", "trace"]]
"""Choices that `auto` makes.

Engines serve in the lowest precision that the YAML allows; `fallback` are those if no other compiles the model.
"""


@dataclass(frozen=True)
class EngineSpec:
    """A row of the table."""

    module: str
    """Module of the class, below this folder."""
    cls: str
    data: tuple[str, ...] = ()
    """Files below this folder that the engine reads on a host, beside the modules that it imports."""
    device: Optional[str] = None
    """Device that a host needs beside its processor, for people."""


ENGINES: Mapping[str, EngineSpec] = {
    "native": EngineSpec("native.engine", "Native"),
    "inductor": EngineSpec("inductor", "Inductor"),
    "onnxruntime": EngineSpec("onnxruntime", "OnnxRuntime"),
    "openvino": EngineSpec("openvino", "OpenVino"),
    "cuda": EngineSpec("cuda.engine", "Cuda", data=("cuda/kernels/recurrence.cu",), device="an NVIDIA GPU"),
    "vollo": EngineSpec("vollo.engine", "Vollo", device="a Vollo accelerator"),
    "neuronx": EngineSpec("aws_neuron.neuronx", "NeuronX", device="an AWS Inferentia2 or Trainium device"),
    "neuron": EngineSpec("aws_neuron.neuron", "Neuron", device="an AWS Inferentia device"),
    "eager": EngineSpec("eager", "Eager"),
}
"""Built-in engines, in the order in which they are listed to users."""

_AUTO: Mapping[Purpose, tuple[str, ...]] = {
    # Inductor takes ten seconds and more for each bucket: to serve, the YAML names it.
    # In float32 OpenVINO is slower than the others: docs/precision.md.
    "float32": ("native", "onnxruntime", "cuda"),
    "bfloat16": ("native", "onnxruntime", "openvino", "cuda"),
    "float16": ("native", "onnxruntime", "cuda"),
    "int8": ("native", "onnxruntime", "cuda"),
    "fallback": ("eager",),
    "trace": ("inductor", "onnxruntime", "eager"),
}
"""Engines that `auto` tries, in this order."""

_HERE = Path(__file__).parent


def get_backend(name: str) -> Backend:
    """Return the engine of this name: a built-in one, or one that an installed distribution provides.

    Raises `LoadError`: there is no such engine, or its distribution cannot be imported. The message lists the engines.
    """
    if name in _built_in():
        spec = ENGINES[name]
        engine: type[Backend] = getattr(importlib.import_module(f".{spec.module}", __package__), spec.cls)
        return engine()
    provided = _provided()
    if name not in provided:
        raise LoadError(unknown_backend(name))
    return _load(provided[name])


def unknown_backend(name: str) -> str:
    """Describe that there is no engine of this name, with the closest one and all others."""
    longer = [known for known in backend_names() if known.startswith(name)]
    near = longer or get_close_matches(name, backend_names(), n=1)
    guess = f" (did you mean {near[0]}?)" if near else ""
    return (
        f"there is no backend {name[:60]!r}{guess}. Available: {', '.join(backend_names()) or 'none'}. A backend of "
        f"another distribution is available once that is installed (entry point group {ENTRY_POINT_GROUP})"
    )


def backend_names() -> tuple[str, ...]:
    """Return the names that `get_backend` accepts here, built-in engines first."""
    return tuple(dict.fromkeys([*_built_in(), *sorted(_provided())]))


def auto_engines(purpose: Purpose) -> tuple[str, ...]:
    """Return the engines that `auto` tries for a purpose, in their order."""
    return tuple(name for name in _AUTO[purpose] if name in _built_in())


def _built_in() -> list[str]:
    return [name for name, spec in ENGINES.items() if (_HERE / f"{spec.module.replace('.', '/')}.py").is_file()]


def _provided() -> dict[str, EntryPoint]:
    if sys.version_info < (3, 10):
        return {entry.name: entry for entry in entry_points().get(ENTRY_POINT_GROUP, ())}
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}


def _load(entry: EntryPoint) -> Backend:
    owner = entry.dist.name if entry.dist is not None else entry.value
    try:
        engine: object = entry.load()()
    except Exception as error:
        raise LoadError(
            f"the backend {entry.name!r} of {owner} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(engine, Backend):
        raise LoadError(
            f"the backend {entry.name!r} of {owner} is a {type(engine).__name__}, not a subclass of "
            f"{Backend.__module__}.{Backend.__name__}: install a release of {owner} that inherits from it"
        )
    return engine
