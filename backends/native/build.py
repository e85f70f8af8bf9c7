"""Compilation of the recurrent library, once for each useful instruction set.

It takes seconds and is the same for every model, so it is in the cache of compiled programs.
"""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .. import cpp_compiler
from ..interface import CompileError, Precision
from .tiles import may_use_tiles

SOURCE = Path(__file__).with_name("recurrence.cpp")
HEADERS = ("atomic", "thread")
"""Headers that the compiler needs for it."""


class InstructionSet(NamedTuple):
    """An instruction set that the recurrent library is compiled for."""

    isa: str
    """Value of the compiler's `-march`."""
    cpu_flags: frozenset[str]
    """Processor features beyond those that every host must have."""
    precision: Precision = "float32"
    """Precision of the recurrences."""
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
        return self.cpu_flags <= cpp_compiler.cpu_flags() and ("amx_tile" not in self.cpu_flags or may_use_tiles())


_LOWER: Mapping[Precision, str] = {"bfloat16": "half", "int8": "int8"}
"""Names of the precisions below float32, in the name of a library and in the option that defines its precision."""
_PROBE = """
#include <immintrin.h>
#if defined(__AVX512BF16__)
__m512 pairs(__m512 sum, __m512 x, __m512 w) { return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)w); }
#endif
#if defined(__AVX512VNNI__)
__m512i quads(__m512i sum, __m512i x, __m512i w) { return _mm512_dpbusd_epi32(sum, x, w); }
#elif defined(__AVXVNNI__)
__m256i quads(__m256i sum, __m256i x, __m256i w) { return _mm256_dpbusd_avx_epi32(sum, x, w); }
#endif
#if defined(__AMX_BF16__)
void tiles() { _tile_dpbf16ps(0, 1, 2); }
#endif
"""
"""Instructions of all extensions."""
_AVX512 = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})


def instruction_sets(precision: Precision = "float32") -> tuple[InstructionSet, ...]:
    """Return those of this kind of machine, the fastest first; every host has the last.

    Raises:
        CompileError: this kind of machine has none for this precision.
    """
    least = cpp_compiler.cpu_target().isa
    if platform.machine() != "x86_64":
        if precision != "float32":
            raise CompileError(f"native computes in {precision} on x86-64 only, this is {platform.machine()}")
        return (InstructionSet(least, frozenset()),)
    without = (InstructionSet("x86-64-v4", _AVX512, precision), InstructionSet(least, frozenset(), precision))
    if precision == "bfloat16":
        return (*_of_bfloat16(), *without)
    return (*_of_int8(least), *without) if precision == "int8" else without


def _of_bfloat16() -> tuple[InstructionSet, ...]:
    """Return the sets that multiply bfloat16."""
    # Intel's processors with tiles multiply float32 at the rate of pairs.
    slow = frozenset({"amx_tile"})
    pairs = InstructionSet("x86-64-v4", _AVX512 | {"avx512_bf16"}, "bfloat16", ("avx512bf16",), slow)
    flags = pairs.cpu_flags | {"amx_tile", "amx_bf16"}
    return InstructionSet("x86-64-v4", flags, "bfloat16", ("avx512bf16", "amx-tile", "amx-bf16")), pairs


def _of_int8(least: str) -> tuple[InstructionSet, ...]:
    """Return the sets that sum products of int8 in 32 bits."""
    wide = InstructionSet("x86-64-v4", _AVX512 | {"avx512_vnni"}, "int8", ("avx512vnni",))
    return wide, InstructionSet(least, frozenset({"avx_vnni"}), "int8", ("avxvnni",))


def build(directory: Path, precision: Precision = "float32") -> None:
    """Write every library whose instructions the compiler and its assembler know, compiled side by side.

    Raises:
        CompileError: the compiler rejects the source, for example without vector extensions, or this kind of machine
            does not compute in this precision.
    """
    compiler = cpp_compiler.compiler()
    chosen = [one for one in instruction_sets(precision) if not one.extensions or _has(compiler, one.options)]
    with ThreadPoolExecutor(len(chosen)) as pool:
        compiled = pool.map(lambda one: _library(compiler, SOURCE, one), chosen)
        for one, library in zip(chosen, compiled):
            (directory / one.library).write_bytes(library)


def is_built(directory: Path) -> bool:
    """Whether a program's directory has libraries, because its source calls them."""
    return any(directory.glob("recurrence-*.so"))


def built_precision(directory: Path) -> Precision:
    """Return the precision of the libraries in a program's directory."""
    there = (precision for precision, name in _LOWER.items() if any(directory.glob(f"recurrence-*-{name}.so")))
    return next(there, "float32")


@cache
def _has(compiler: str, options: tuple[str, ...]) -> bool:
    """Whether a compiler knows these options, and its assembler the instructions.

    GNU's assembler knows those of tiles from 2.36 on.
    """
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "probe.cpp"
        source.write_text(_PROBE, encoding="utf-8")
        return cpp_compiler.run([compiler, *options, "-c", str(source), "-o", f"{directory}/probe.o"]).returncode == 0


@cache
def _library(compiler: str, source: Path, instructions: InstructionSet) -> bytes:
    """One library, from the cache if it is there; this process reads or compiles it once."""
    from ..compile_cache import entries
    from ..compile_cache.folder import cache_folder
    from ..compile_cache.key import digest

    options = ("-std=c++17", "-O3", "-fPIC", "-shared", "-pthread", *instructions.options, "-ffp-contract=fast")
    folder = cache_folder(os.environ).path
    key = digest({"library": source.read_text(encoding="utf-8"), "options": options})
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory) / "recurrence.so"
        if folder is None or not entries.fetch(folder, key, library.parent):
            _compile([compiler, *options, str(source), "-o", str(library)], instructions.isa)
            cpp_compiler.strip(library)
            if folder is not None:
                entries.keep(folder, key, library.parent)
        return library.read_bytes()


def _compile(command: list[str], isa: str) -> None:
    done = cpp_compiler.run(command)
    if done.returncode != 0:
        said = next((line for line in done.stderr.splitlines() if "error" in line), f"exit code {done.returncode}")
        raise CompileError(f"{command[0]} does not compile the recurrent library for {isa}: {said.strip()}")


def fastest_library(directory: Path) -> str:
    """Return the name of the fastest library in a program's directory for this processor."""
    ordered = instruction_sets(built_precision(directory))
    there = (one for one in ordered if not one.extensions or (directory / one.library).exists())
    flags = cpp_compiler.cpu_flags()
    return next(one.library for one in there if not one.slow_with & flags and one.runs_here())
