"""An engine whose compiler refuses some operators, without an operator query."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from torchserve_neuron_lstm.backends import interface
from torchserve_neuron_lstm.backends.eager import Eager
from torchserve_neuron_lstm.backends.interface import DEFAULTS, Backend, CompileError, Precision, Requirement, Weights
from torchserve_neuron_lstm.backends.partitioning.operator_names import operator_name, operators_of
from torchserve_neuron_lstm.bucketing.shapes import Bucket


@dataclass
class Picky(Backend):
    """Eager with a compiler that refuses some operators, and records each program."""

    refused: frozenset[str] = frozenset()
    name: str = "picky"
    polymorphic: bool = False
    any_shape: bool = False
    precisions: tuple[Precision, ...] = ("float32",)
    options: tuple[interface.CompilerOption, ...] = ("compiler_workdir", "compiler_args")

    def requirements(self) -> tuple[Requirement, ...]:
        return Eager().requirements()

    def compile(
        self,
        program: torch.export.ExportedProgram,
        bucket: Bucket | None,
        directory: Path,
        settings: interface.CompileSettings = DEFAULTS,
    ) -> None:
        assert bucket is not None
        names = [operator_name(node) for node in operators_of(program.graph)]
        for name in names:
            if name in self.refused:
                raise CompileError(f"picky has no {name}")
        (directory / "asked.json").write_text(json.dumps({"operators": names, "args": settings.args}))
        if settings.workdir is not None:
            (settings.workdir / "notes.txt").write_text("\n".join(names))
        Eager().compile(program, None, directory)

    def load(self, directory: Path, weights: Weights, host: Mapping[str, str], threads: int) -> interface.LoadedProgram:
        return Eager().load(directory, weights, host, threads)


@dataclass
class Telling(Picky):
    """The same engine, with estimates for its programs and a reason to run no chunks."""

    whole_sequences: str | None = "it keeps its state to itself"

    def estimate_us(self, directory: Path) -> float | None:
        """Estimate two microseconds for each operator."""
        return 2.0 * len(json.loads((directory / "asked.json").read_text())["operators"])
