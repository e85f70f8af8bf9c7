"""What the two Neuron engines share: their packages on a host, and what lies in a variant's directory.

A variant is `program.pt`, the ScriptModule that the compiler made; `program.py`, the text it was made from, which runs
on any CPU; and what both take.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ..interface import LoadedProgram, LoadError, Weights
from ..signature import Signature, read_signature, write_signature
from ..simulation import emulation_enabled
from ..weights import copy_if_aliased, storage_ptrs
from .source_program import SourceProgram, build_source_module
from .toolchain import Toolchain, placeholder_message

PROGRAM = "program.pt"
_SOURCE = "program.py"
_FACTS = "compiled.json"
_ADDED = "added.pt"
_PLACEHOLDER = "1.0"
"""The only version of these names on PyPI, which is empty."""

CORE_VARIABLES = ("NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES")
"""The variables that give a process its NeuronCores: by index, or by number."""


def unavailable_reason(toolchain: Toolchain) -> str | None:
    """Why this interpreter cannot use the toolchain, with what to install; None where it can."""
    distribution = toolchain.module.replace("_", "-")
    if _installed(distribution) == _PLACEHOLDER:
        return f"here is {placeholder_message(toolchain, _PLACEHOLDER)}"
    if find_spec(toolchain.module) is None:
        return (
            f"{distribution} is not installed. {toolchain.install}; an interpreter beside this one that has it can be "
            f"named with compiler_python"
        )
    try:
        engine = import_toolchain(toolchain)
    except Exception as error:  # noqa: BLE001 - whatever a broken installation raises is the answer
        return f"{distribution} cannot be imported ({type(error).__name__}: {error}). {toolchain.install}"
    if not hasattr(engine, "trace"):
        return f"here is {placeholder_message(toolchain, str(getattr(engine, '__version__', 'without a version')))}"
    return None


def _installed(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def import_toolchain(toolchain: Toolchain) -> Any:
    """The toolchain's package, with one core for this process unless the environment says otherwise.

    Workers are processes, and processes do not share cores: the first would take them all.
    """
    if not any(name in os.environ for name in CORE_VARIABLES):
        os.environ["NEURON_RT_NUM_CORES"] = "1"  # read when the package is imported, or soon after
    return import_module(toolchain.module)


@dataclass(frozen=True)
class NeuronArtifact:
    """A variant's directory."""

    signature: Signature
    names: tuple[str, ...]
    """The tensors that the program takes, in its order, as the state dict calls them."""
    made_by: dict[str, str]
    """The toolchain: module, version, torch, python."""
    extra_tensors: dict[str, torch.Tensor]
    """Those of the tensors that are not among the archive's weights and constants."""
    source: str


def write_artifact(directory: Path, program: SourceProgram, made_by: dict[str, str]) -> None:
    """Write what goes with `program.pt`."""
    write_signature(program.signature, directory)
    (directory / _SOURCE).write_text(program.source, encoding="utf-8")
    (directory / _FACTS).write_text(json.dumps({"names": program.names, "made_by": made_by}), encoding="utf-8")
    if program.extra_tensors:
        torch.save(program.extra_tensors, directory / _ADDED)


def read_artifact(directory: Path) -> NeuronArtifact:
    """Read what `write_artifact` wrote.

    Raises:
        LoadError: a file is missing or damaged.
    """
    signature = read_signature(directory)
    try:
        facts = json.loads((directory / _FACTS).read_text(encoding="utf-8"))
        added = directory / _ADDED
        return NeuronArtifact(
            signature=signature,
            names=tuple(facts["names"]),
            made_by=dict(facts["made_by"]),
            extra_tensors=torch.load(added, weights_only=True) if added.is_file() else {},
            source=(directory / _SOURCE).read_text(encoding="utf-8"),
        )
    except Exception as error:
        raise LoadError(f"{directory} cannot be read ({error}): package the model again") from error


def artifact_tensors(compiled: NeuronArtifact, weights: Weights) -> list[torch.Tensor]:
    """The tensors in the program's order, shared and not copied.

    Raises:
        LoadError: one is missing, or not what the program was compiled with.
    """
    given = {**compiled.signature.pick_weights(weights), **compiled.extra_tensors}
    return [given[name].detach() for name in compiled.names]


def require_toolchain(toolchain: Toolchain, compiled: NeuronArtifact) -> Any:
    """The toolchain's package on a host that serves.

    Raises:
        LoadError: it is missing, a placeholder, or of another line than what the program was compiled with.
    """
    lacking = unavailable_reason(toolchain)
    if lacking is not None:
        raise LoadError(f"the programs run on a Neuron device, by {toolchain.module}: {lacking}")
    engine = import_toolchain(toolchain)
    here, packaged = str(getattr(engine, "__version__", "")), compiled.made_by["version"]
    if _line(here) != _line(packaged):
        raise LoadError(
            f"the programs were compiled with {toolchain.module} {packaged}, here is {here}: install that one, or "
            f"package the model again"
        )
    return engine


def _line(text: str) -> list[str]:
    """Major and minor: those of the torch that a toolchain is for."""
    return text.split(".")[:2]


def run_of(signature: Signature, module: torch.nn.Module) -> LoadedProgram:
    """A module on tensors of exactly the signature's shapes and dtypes. Raises `WrongInput` for any other.

    An answer is a copy where the module answers with one of its own tensors.
    """
    held = (*module.parameters(), *module.buffers())
    places = storage_ptrs(tensor for tensor in held if tensor.device.type == "cpu")  # answers lie on the CPU

    def run(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        signature.check_inputs(inputs)
        with torch.no_grad():
            outputs = module(*(tensor.contiguous() for tensor in inputs))
            return [copy_if_aliased(output.contiguous(), places) for output in outputs]

    return run


def emulation_reason(toolchain: Toolchain) -> str | None:
    """What stands in for the device on this host, and why; None where nothing does."""
    if not emulation_enabled() or unavailable_reason(toolchain) is None:
        return None
    return (
        f"run by torch on this CPU from the text that {toolchain.module} was given, which cannot be used here: the "
        f"answers are the model's, the speed is not the device's, and what was compiled has not run"
    )


def load_on_cpu(compiled: NeuronArtifact, weights: Weights, threads: int) -> LoadedProgram:
    """The text of a program on this CPU: what the compiler was given, not what it made.

    Raises:
        LoadError: the weights are others.
    """
    given = dict(zip(compiled.names, artifact_tensors(compiled, weights), strict=True))
    torch.set_num_threads(threads)
    return run_of(compiled.signature, build_source_module(compiled.source, given, compiled.names))
