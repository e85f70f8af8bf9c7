"""Compilation of the recurrent library, once for each useful instruction set.

It takes seconds and is the same for every model, so it is in the cache of compiled programs.
"""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from .. import cpp_compiler
from ..interface import CompileError, Precision
from .instruction_sets import InstructionSet, instruction_sets

SOURCE = Path(__file__).parent / "recurrence" / "recurrence.cpp"
"""It includes the other files of its folder."""
STANDARD = "c++17"
"""Standard of the source."""
HEADERS = ("atomic", "thread")
"""Headers that the compiler needs for it."""


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

    options = (f"-std={STANDARD}", "-O3", "-fPIC", "-shared", "-pthread", *instructions.options, "-ffp-contract=fast")
    folder = cache_folder(os.environ).path
    files = {file.name: file.read_text(encoding="utf-8") for file in source.parent.iterdir() if file.is_file()}
    key = digest({"library": files, "options": options})
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
