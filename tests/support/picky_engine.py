"""An engine that takes only what its compiler lets pass, and says nothing beforehand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from torchserve_neuron_lstm.backends.eager import Eager
from torchserve_neuron_lstm.backends.interface import (
    DEFAULTS,
    CompileError,
    CompilerOption,
    CompileSettings,
    LoadedProgram,
    Precision,
    Requirement,
    Weights,
)
from torchserve_neuron_lstm.backends.partitioning.partition import operator_name, operators_of
from torchserve_neuron_lstm.bucketing.shapes import Bucket


@dataclass
class Picky:
    """Eager with a compiler that refuses some operators, fails on others, and records each program."""

    refused: frozenset[str] = frozenset()
    crashing: frozenset[str] = frozenset()
    together: frozenset[str] = frozenset()
    """Operators that it takes one by one, but not with another of them in one program."""
    name: str = "picky"
    polymorphic: bool = False
    any_shape: bool = False
    precisions: tuple[Precision, ...] = ("float32",)
    options: tuple[CompilerOption, ...] = ("compiler_workdir", "compiler_args")

    def unavailable(self) -> str | None:
        """Never."""
        return None

    def requirements(self) -> tuple[Requirement, ...]:
        """Torch."""
        return Eager().requirements()

    def host(self) -> Mapping[str, str]:
        """Any."""
        return {}

    def compile(
        self,
        program: torch.export.ExportedProgram,
        bucket: Bucket | None,
        directory: Path,
        settings: CompileSettings = DEFAULTS,
    ) -> None:
        """Look at the operators, then do as eager does."""
        assert bucket is not None
        names = [operator_name(node) for node in operators_of(program.graph)]
        for name in names:
            if name in self.crashing:
                raise ZeroDivisionError(name)
            if name in self.refused:
                raise CompileError(f"picky has no {name}")
        if len(self.together & set(names)) > 1:
            raise CompileError(f"picky has no {' with '.join(sorted(self.together))}")
        (directory / "asked.json").write_text(json.dumps({"operators": names, "args": settings.args}))
        if settings.workdir is not None:
            (settings.workdir / "notes.txt").write_text("\n".join(names))
        Eager().compile(program, None, directory)

    def load(self, directory: Path, weights: Weights, host: Mapping[str, str], threads: int) -> LoadedProgram:
        """As eager does."""
        return Eager().load(directory, weights, host, threads)


@dataclass
class Telling(Picky):
    """The same, which knows how long each program takes, and why it runs no pieces."""

    whole_sequences: str = "it keeps its state to itself"

    def estimate_us(self, directory: Path) -> float | None:
        """Two microseconds for an operator."""
        return 2.0 * len(json.loads((directory / "asked.json").read_text())["operators"])
