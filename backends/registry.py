"""Table of engines: their names, and their order under `auto`.

A new engine is its own file or folder and one row in `ENGINES`. An engine is imported when it is requested, since an
archive carries only one. A model that is not lowered is served by `eager`, and its recurrent layers by the library of
`native`: they have no rank for it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Literal, Optional

from .interface import Backend, LoadError, Precision

ENTRY_POINT_GROUP = "torchserve_neuron_lstm.backends"
"""Group of entry points that name a `Backend` class. The name of the entry point is that of the engine."""

Purpose = Literal["serve_float32", "serve_bfloat16", "serve_float16", "serve_int8", "fallback", "trace"]
"""Choices that `auto` makes. `fallback`: engines for serving if no other compiles the model."""

SERVING: Mapping[Precision, Purpose] = {
    "float32": "serve_float32",
    "bfloat16": "serve_bfloat16",
    "float16": "serve_float16",
    "int8": "serve_int8",
}
"""The purpose of engines that serve, by the lowest precision that the YAML allows."""


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
    auto: Mapping[Purpose, int] = field(default_factory=dict)
    """Rank for each purpose, lowest first; without a rank the engine is not tried."""


ENGINES: Mapping[str, EngineSpec] = {
    "native": EngineSpec(
        "native.engine", "Native", auto={"serve_float32": 0, "serve_bfloat16": 0, "serve_float16": 0, "serve_int8": 0}
    ),
    # Inductor takes ten seconds and more for each bucket: to serve, the YAML names it.
    "inductor": EngineSpec("inductor", "Inductor", auto={"trace": 0}),
    "onnxruntime": EngineSpec(
        "onnxruntime",
        "OnnxRuntime",
        auto={"serve_float32": 2, "serve_bfloat16": 2, "serve_float16": 2, "serve_int8": 2, "trace": 1},
    ),
    # In float32 OpenVINO is slower than the others: docs/precision.md.
    "openvino": EngineSpec("openvino", "OpenVino", auto={"serve_bfloat16": 3}),
    "cuda": EngineSpec(
        "cuda.engine",
        "Cuda",
        data=("cuda/kernels/recurrence.cu",),
        device="an NVIDIA GPU",
        auto={"serve_float32": 3, "serve_bfloat16": 4, "serve_float16": 3, "serve_int8": 3},
    ),
    "vollo": EngineSpec("vollo.engine", "Vollo", device="a Vollo accelerator"),
    "neuronx": EngineSpec("aws_neuron.neuronx", "NeuronX", device="an AWS Inferentia2 or Trainium device"),
    "neuron": EngineSpec("aws_neuron.neuron", "Neuron", device="an AWS Inferentia device"),
    "eager": EngineSpec("eager", "Eager", auto={"fallback": 0, "trace": 2}),
}
"""Built-in engines, in the order in which they are listed to users."""

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
    """Return the engines that `auto` tries for a purpose, in the order of their ranks.

    >>> auto_engines("serve_float32")
    ('native', 'onnxruntime', 'cuda')
    """
    ranks = {name: ENGINES[name].auto[purpose] for name in _built_in() if purpose in ENGINES[name].auto}
    return tuple(sorted(ranks, key=ranks.__getitem__))


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
