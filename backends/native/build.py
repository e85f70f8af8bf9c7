"""Compilation of the recurrent library, once for each useful instruction set.

It takes seconds and is the same for every model, so it is in the cache of compiled programs.
"""

from __future__ import annotations

import os
import platform
import tempfile
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
    half: bool = False
    """Whether the weights of recurrences take half the bytes."""
    extensions: tuple[str, ...] = ()
    """Values of further `-m`. Not every compiler and assembler knows them. The last one names the library."""
    slow_with: frozenset[str] = frozenset()
    """Features of processors on which the next set is faster."""

    @property
    def library(self) -> str:
        """Name of the library's file."""
        return "-".join(["recurrence", self.isa, *self.extensions[-1:], *["half"] * self.half]) + ".so"

    @property
    def options(self) -> tuple[str, ...]:
        """Options of the compiler."""
        return (
            f"-march={self.isa}",
            *(f"-m{extension}" for extension in self.extensions),
            *["-DHALF_PRECISION"] * self.half,
        )

    def runs_here(self) -> bool:
        """Whether this processor has the instructions, and the system lets this process use them."""
        return self.cpu_flags <= cpp_compiler.cpu_flags() and ("amx_tile" not in self.cpu_flags or may_use_tiles())


_PROBE = """
#include <immintrin.h>
__m512 pairs(__m512 sum, __m512 x, __m512 w) { return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)w); }
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
    half = precision == "bfloat16"
    if platform.machine() != "x86_64":
        if half:
            raise CompileError(f"native computes in bfloat16 on x86-64 only, this is {platform.machine()}")
        return (InstructionSet(least, frozenset()),)
    without = (InstructionSet("x86-64-v4", _AVX512, half), InstructionSet(least, frozenset(), half))
    # Intel's processors with tiles multiply float32 at the rate of pairs.
    slow = frozenset({"amx_tile"})
    pairs = InstructionSet("x86-64-v4", _AVX512 | {"avx512_bf16"}, half, ("avx512bf16",), slow)
    flags = pairs.cpu_flags | {"amx_tile", "amx_bf16"}
    tiles = InstructionSet("x86-64-v4", flags, half, ("avx512bf16", "amx-tile", "amx-bf16"))
    return (tiles, pairs, *without) if half else without


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
    return "bfloat16" if any(directory.glob("recurrence-*-half.so")) else "float32"


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
