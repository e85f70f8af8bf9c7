"""Base of the engines that read an ONNX graph, which they compile while they load it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .interface import Backend, CompileError, LoadedProgram, LoadError, Requirement, Tensors, Weights
from .signature import Signature, read_signature, signature_of, write_signature
from .versions import LOWEST_TORCH_REQUIREMENT

if TYPE_CHECKING:
    from torch.export import ExportedProgram

GRAPH = "program.onnx"
"""The file of the graph, in a program's directory."""


class OnnxEngine(Backend):
    """One program for every bucket; a subclass writes the graph and loads it."""

    product: str
    """Name of the engine in messages."""
    lowest: str
    """The oldest release that was run, the last one for Python 3.9. It reads the graph's version of ONNX."""
    polymorphic = True

    def unavailable(self) -> str | None:
        """Return which packages of the exporter and the engine are missing."""
        from .onnx_export import missing_packages

        return missing_packages(self.name)

    def requirements(self) -> tuple[Requirement, ...]:
        """Return torch, for the tensors, and the engine, of any release that reads the graph."""
        return LOWEST_TORCH_REQUIREMENT, Requirement(self.name, self.name, self.lowest)

    def refusal(self, node: torch.fx.Node) -> str | None:
        """Return why an operator cannot be exported to ONNX. Raises `CompileError`: the exporter is not installed."""
        from .onnx_export import missing_translation

        return missing_translation(node)

    def load(self, directory: Path, weights: Weights, host: Mapping[str, str], threads: int) -> LoadedProgram:
        """Load the graph over the weights."""
        signature = read_signature(directory)
        real = signature.pick_weights(weights)
        # torch only copies here, and its threads would spin beside those of the engine.
        torch.set_num_threads(1)
        try:
            return self.load_graph(directory, signature, real, threads)
        except LoadError:
            raise
        except Exception as error:
            raise LoadError(
                f"this host's {self.product} cannot load {directory}: {error}; install the version the program was "
                f"packaged with, or package the model again"
            ) from error

    def try_program(
        self, program: ExportedProgram, directory: Path, check: Callable[[Tensors], None] = lambda outputs: None
    ) -> None:
        """Load a compiled program, run it on example inputs if it has any, and check the outputs.

        Raises `CompileError`: the engine does not support the program, because one of these fails.
        """
        from .exported_tensors import weights_of

        try:
            run = self.load(directory, weights_of(program), {}, threads=1)
            if program.example_inputs is not None:  # an operator that lacks a dtype fails when it runs
                check(run(program.example_inputs[0]))
        except Exception as error:
            reason = str(error.__cause__ or error).strip()
            raise CompileError(f"{self.product} does not support this program: {reason}") from error

    @abstractmethod
    def load_graph(self, directory: Path, signature: Signature, weights: Weights, threads: int) -> LoadedProgram:
        """Load the graph of a directory over the weights that it takes."""


def write_graph(model: Any, program: ExportedProgram, weights: Collection[str], directory: Path) -> None:
    """Write the graph, and the signature with the weights that it takes."""
    (directory / GRAPH).write_bytes(model.SerializeToString())
    whole = signature_of(program, None)
    taken = {name: kind for name, kind in whole.weights.items() if name in weights}
    write_signature(Signature(inputs=whole.inputs, weights=taken), directory)
