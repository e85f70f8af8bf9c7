"""AOTInductor engine: a weight-stripped shared library for each bucket.

The machine's C++ compiler compiles it. The library calls operators of torch, and the abstract operator for GRUs and
plain RNNs. So the serving process registers that operator too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from ..bucketing.shapes import Bucket
from . import recurrent_operators as _recurrent_operators  # noqa: F401  registers the operators that libraries call
from . import target_machine
from .cores import set_torch_threads
from .interface import (
    DEFAULTS,
    Backend,
    CompilerOption,
    CompileSettings,
    LoadedProgram,
    LoadError,
    Requirement,
    Weights,
)
from .module_program import ModuleProgram
from .signature import read_signature, signature_of, write_signature
from .versions import minor_release, release, torch_requirement, torch_version

_LIBRARY = "program.so"
_CALLS = "program.json"
"""List of the operators that the library calls. torch looks for it beside the library, under the same name."""
_OLDEST_TORCH = (2, 13, 0)
"""The oldest release of torch whose inductor compiles for another CPU than that of the machine."""


class Inductor(Backend):
    """One program for each bucket."""

    name = "inductor"
    options: tuple[CompilerOption, ...] = ("compiler_workdir", "compiler_args")
    pins_torch_minor = True

    def unavailable(self) -> str | None:
        """Return why there is no C++ compiler, or that this torch or machine is not supported."""
        if release(torch_version()) < _OLDEST_TORCH:
            return (
                f"torch {torch_version()} compiles for the CPU of the packaging machine alone: inductor needs torch "
                f"{'.'.join(map(str, _OLDEST_TORCH[:2]))} or later"
            )
        from .cpp_compiler import unavailable_reason

        return unavailable_reason("c++20", ("omp.h",))

    def requirements(self) -> tuple[Requirement, ...]:
        """Return torch; hosts need the same minor version."""
        return (torch_requirement(),)

    def host(self) -> Mapping[str, str]:
        """Return the operating system, the machine, its instruction set, and the torch that the code calls."""
        return {**target_machine.host(), "torch": minor_release(torch_version())}

    def compile(
        self, program: ExportedProgram, bucket: Bucket | None, directory: Path, settings: CompileSettings = DEFAULTS
    ) -> None:
        """Write the library for one bucket.

        The arguments of `settings` come last on the C++ compiler's command line; its `workdir` keeps the sources, the
        commands and all other files of inductor.
        """
        from .inductor_compiler import compile_library

        assert bucket is not None  # it is not polymorphic
        write_signature(signature_of(program, bucket), directory)
        compile_library(program, bucket, settings, library=directory / _LIBRARY, calls=directory / _CALLS)

    def load(self, directory: Path, weights: Weights, host: Mapping[str, str], threads: int) -> LoadedProgram:
        """Map the library and give it the addresses of the weights."""
        target_machine.check_host(host)
        here = minor_release(torch_version())
        if host.get("torch", here) != here:
            raise LoadError(
                f"the programs were compiled for torch {host['torch']}, this host has {here}: "
                f"{target_machine.REPACKAGE_HINT}"
            )
        signature = read_signature(directory)
        real = signature.pick_weights(weights)
        set_torch_threads(threads)
        # Mapped in place, so that all workers share its pages. torch's own package loader would unpack it into a
        # temporary directory for each worker, and takes more than a second to import.
        with target_machine.executable_copy(directory, (_LIBRARY, _CALLS)) as mapped:
            runner = _map(mapped / _LIBRARY)
        wanted = runner.get_constant_names_to_original_fqns()
        # All of them, before the first call: otherwise the library would read from address 0.
        shared = {name: real[original] for name, original in wanted.items()}
        runner.update_constant_buffer(shared, False, True, True)  # used at once, none missing, memory not copied
        return ModuleProgram(signature, lambda *inputs: runner.run(list(inputs)), shared.values())


def _map(library: Path) -> Any:
    try:
        json.loads(library.with_name(_CALLS).read_text(encoding="utf-8"))  # else it would call wrong operators
        return torch._C._aoti.AOTIModelContainerRunnerCpu(str(library), 1)
    except (OSError, ValueError) as error:
        raise LoadError(f"{library.with_name(_CALLS)} is missing or damaged: package the model again") from error
    except RuntimeError as error:
        raise LoadError(
            f"{library} cannot be loaded: {str(error).splitlines()[0]}. Package the model on a machine whose system "
            f"and compiler are no newer than this host's, or with backend: onnxruntime"
        ) from error
