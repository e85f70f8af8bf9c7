"""AWS's packages on a host, and the files of a Neuron program.

The directory of a program has `program.pt`, the ScriptModule that the compiler made, and `program.py`, the Python
source from which it was made. The source runs on any CPU. The directory also has the inputs and tensors of both.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ...config.json_codec import write_json
from ..cores import set_torch_threads
from ..interface import LoadedProgram, LoadError, Weights
from ..module_program import ModuleProgram
from ..signature import Signature, read_program_file, read_signature, write_signature
from ..versions import emulation_enabled, minor_release
from .source_program import SourceProgram

PROGRAM = "program.pt"
_SOURCE = "program.py"
_FACTS = "compiled.json"
_EXTRA_TENSORS = "added.pt"
_PLACEHOLDER = "1.0"
"""Only version of AWS's packages on PyPI; it is empty."""

CORE_VARIABLES = ("NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES")
"""The variables that give a process its NeuronCores: by index, or by number."""


@dataclass(frozen=True)
class Toolchain:
    """A compiler and its runtime as a Python package."""

    module: str
    """Package with `trace`, e.g. torch_neuronx."""
    torch: str
    """Release of torch that the package requires: major and minor."""
    install: str
    """Sentence that says how to install the real package."""


def unavailable_reason(toolchain: Toolchain) -> str | None:
    """Return why this interpreter cannot use the toolchain, with what to install; None if it can."""
    distribution = toolchain.module.replace("_", "-")
    with suppress(PackageNotFoundError):
        if version(distribution) == _PLACEHOLDER:
            return f"this interpreter has {placeholder_message(toolchain, _PLACEHOLDER)}"
    if find_spec(toolchain.module) is None:
        return (
            f"{distribution} is not installed. {toolchain.install}; if another interpreter has it, name that one with "
            f"compiler_python"
        )
    try:
        package = import_toolchain(toolchain)
    except Exception as error:  # noqa: BLE001 - any exception of a broken installation is the reason
        return f"{distribution} cannot be imported ({type(error).__name__}: {error}). {toolchain.install}"
    if not hasattr(package, "trace"):
        release = str(getattr(package, "__version__", "without a version"))
        return f"this interpreter has {placeholder_message(toolchain, release)}"
    return None


def placeholder_message(toolchain: Toolchain, release: str) -> str:
    """Describe PyPI's empty package of the toolchain's name, and how to replace it."""
    return (
        f"a {toolchain.module} ({release}) without trace(): the package of this name on PyPI is an empty placeholder. "
        f"Remove it (pip uninstall {toolchain.module.replace('_', '-')}). {toolchain.install}"
    )


def import_toolchain(toolchain: Toolchain) -> Any:
    """Import the toolchain's package, with one core unless the environment configures cores.

    Workers are processes, and processes do not share cores: the first would take them all.
    """
    if not any(name in os.environ for name in CORE_VARIABLES):
        os.environ["NEURON_RT_NUM_CORES"] = "1"  # read when the package is imported, or soon after
    return import_module(toolchain.module)


@dataclass(frozen=True)
class _Facts:
    names: tuple[str, ...]
    made_by: dict[str, str]
    """Versions of the toolchain: module, version, torch, python."""


def write_artifact(directory: Path, program: SourceProgram, made_by: dict[str, str]) -> None:
    """Write the files beside `program.pt`."""
    write_signature(program.signature, directory)
    (directory / _SOURCE).write_text(program.source, encoding="utf-8")
    write_json(_Facts, _Facts(program.names, made_by), directory / _FACTS)
    if program.extra_tensors:
        from ..torch_files import torch_file

        with torch_file(directory / _EXTRA_TENSORS) as file:
            torch.save(program.extra_tensors, file)


def read_artifact(directory: Path) -> tuple[SourceProgram, dict[str, str]]:
    """Read the program and the versions that `write_artifact` wrote.

    Raises `LoadError`: a file is missing or damaged.
    """
    signature = read_signature(directory)
    facts = read_program_file(_Facts, directory / _FACTS)
    try:
        extra_tensors = directory / _EXTRA_TENSORS
        added = torch.load(extra_tensors, weights_only=True) if extra_tensors.is_file() else {}
        source = (directory / _SOURCE).read_text(encoding="utf-8")
    except Exception as error:
        raise LoadError(f"{directory} cannot be read ({error}): package the model again") from error
    return SourceProgram(source, facts.names, added, signature), facts.made_by


def require_toolchain(toolchain: Toolchain, packaged: str) -> Any:
    """Import the toolchain's package on a serving host.

    Raises `LoadError`: it is missing, a placeholder, or of another minor release than `packaged`, which compiled
    programs.
    """
    if (reason := unavailable_reason(toolchain)) is not None:
        raise LoadError(f"the programs run on a Neuron device, by {toolchain.module}: {reason}")
    package = import_toolchain(toolchain)
    here = str(getattr(package, "__version__", ""))
    if minor_release(here) != minor_release(packaged):
        raise LoadError(
            f"the programs were compiled with {toolchain.module} {packaged}, here is {here}: install the former, or "
            f"package the model again"
        )
    return package


def module_program(signature: Signature, module: torch.nn.Module) -> LoadedProgram:
    """Wrap a module that holds its own tensors as a loaded program."""
    tensors = (*module.parameters(), *module.buffers())
    # Outputs are on the CPU, and so are the tensors that they may share memory with.
    return ModuleProgram(signature, module, [tensor for tensor in tensors if tensor.device.type == "cpu"])


def emulation_reason(toolchain: Toolchain) -> str | None:
    """Return why the device is emulated on this host; None if it is not."""
    if not emulation_enabled() or unavailable_reason(toolchain) is None:
        return None
    return (
        f"emulated by torch on this CPU, from the source that {toolchain.module} compiled, because that package cannot "
        f"be used here: the outputs are the model's, the times are not the device's, and what was compiled has not run"
    )


def load_on_cpu(program: SourceProgram, weights: Weights, threads: int) -> LoadedProgram:
    """Load the source of a program on this CPU: the compiler's input, not its output.

    Raises `LoadError`: the weights do not match the program.
    """
    module = program.module(program.signature.pick_weights(weights))
    set_torch_threads(threads)
    return module_program(program.signature, module)
