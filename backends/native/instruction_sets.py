"""Instruction sets that the recurrent library is compiled for, and the choice among its libraries."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from .. import target_machine
from ..interface import CompileError, Precision
from .packing import may_use_tiles


class InstructionSet(NamedTuple):
    """An instruction set that the recurrent library is compiled for."""

    isa: str
    """Value of the compiler's `-march`."""
    cpu_flags: frozenset[str]
    """Processor features beyond those that every host must have."""
    precision: Precision = "float32"
    extensions: tuple[str, ...] = ()
    """Values of further `-m`. Not every compiler and assembler knows them. The last one names the library."""
    slow_with: frozenset[str] = frozenset()
    """Features of processors on which the next set is faster."""

    @property
    def library(self) -> str:
        """Name of the library's file."""
        return "-".join(["recurrence", self.isa, *self.extensions[-1:], *self._lower]) + ".so"

    @property
    def options(self) -> tuple[str, ...]:
        """Options of the compiler."""
        return (
            f"-march={self.isa}",
            *(f"-m{extension}" for extension in self.extensions),
            *[f"-D{name.upper()}_PRECISION" for name in self._lower],
        )

    @property
    def _lower(self) -> list[str]:
        return [name for precision, name in _LOWER.items() if precision == self.precision]

    def runs_here(self) -> bool:
        """Whether this processor has the instructions, and the system lets this process use them."""
        return self.cpu_flags <= target_machine.cpu_flags() and ("amx_tile" not in self.cpu_flags or may_use_tiles())


_LOWER: Mapping[Precision, str] = {"bfloat16": "half", "int8": "int8"}
"""Names of the precisions below float32, in the name of a library and in the option that defines its precision."""
_AVX512 = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})


def instruction_sets(precision: Precision = "float32") -> tuple[InstructionSet, ...]:
    """Return those of this kind of machine, the fastest first; every host has the last.

    Raises `CompileError`: this kind of machine has none for this precision.
    """
    least = target_machine.cpu_target().isa
    if platform.machine() != "x86_64":
        if precision != "float32":
            raise CompileError(f"native computes in {precision} on x86-64 only, this is {platform.machine()}")
        return (InstructionSet(least, frozenset()),)
    without = (InstructionSet("x86-64-v4", _AVX512, precision), InstructionSet(least, frozenset(), precision))
    if precision == "bfloat16":
        # Intel's processors with tiles multiply float32 at the rate of pairs.
        slow = frozenset({"amx_tile"})
        pairs = InstructionSet("x86-64-v4", _AVX512 | {"avx512_bf16"}, "bfloat16", ("avx512bf16",), slow)
        flags = pairs.cpu_flags | {"amx_tile", "amx_bf16"}
        tiles = InstructionSet("x86-64-v4", flags, "bfloat16", ("avx512bf16", "amx-tile", "amx-bf16"))
        return tiles, pairs, *without
    if precision == "int8":  # products are summed in 32 bits
        wide = InstructionSet("x86-64-v4", _AVX512 | {"avx512_vnni"}, "int8", ("avx512vnni",))
        return wide, InstructionSet(least, frozenset({"avx_vnni"}), "int8", ("avxvnni",)), *without
    return without


def is_built(directory: Path) -> bool:
    """Whether a program's directory has libraries, because its source calls them."""
    return any(directory.glob("recurrence-*.so"))


def built_precision(directory: Path) -> Precision:
    """Return the precision of the libraries in a program's directory."""
    there = (precision for precision, name in _LOWER.items() if any(directory.glob(f"recurrence-*-{name}.so")))
    return next(there, "float32")


def fastest_library(directory: Path) -> str:
    """Return the name of the fastest library in a program's directory for this processor."""
    ordered = instruction_sets(built_precision(directory))
    there = (one for one in ordered if not one.extensions or (directory / one.library).exists())
    flags = target_machine.cpu_flags()
    return next(one.library for one in there if not one.slow_with & flags and one.runs_here())
