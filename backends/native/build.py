"""Compilation of the recurrent library, once for each useful instruction set.

It takes seconds and is the same for every model, so it is kept in the user's directory for caches.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import stat
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path

from .. import cpp_compiler
from ..interface import CompileError, Precision
from .instruction_sets import InstructionSet, instruction_sets

SOURCE = Path(__file__).parent / "recurrence" / "recurrence.cpp"
"""It includes the other files of its folder."""
STANDARD = "c++17"
HEADERS = ("atomic", "thread")
"""Headers that the compiler needs for it."""

_COMPILER_VARIABLES = ("CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_")
"""Beginnings of the names of environment variables that compilers read."""

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

    Raises `CompileError`: the compiler rejects the source, for example without vector extensions, or this kind of
    machine does not compute in this precision.
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
    return cpp_compiler.probe(compiler, _PROBE, [*options, "-c"]) is None


@cache
def _library(compiler: str, source: Path, instructions: InstructionSet) -> bytes:
    """One library, from the cache if it is there; this process reads or compiles it once."""
    options = (f"-std={STANDARD}", "-O3", "-fPIC", "-shared", "-pthread", *instructions.options, "-ffp-contract=fast")
    folder = _cache_folder()
    cached = None if folder is None else folder / f"{_digest(compiler, source, options)}.so"
    if cached is not None and cached.is_file():
        return cached.read_bytes()
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory) / "recurrence.so"
        done = cpp_compiler.run([compiler, *options, str(source), "-o", str(library)])
        if (said := cpp_compiler.failure(done)) is not None:
            raise CompileError(f"{compiler} does not compile the recurrent library for {instructions.isa}: {said}")
        cpp_compiler.strip(library)
        content = library.read_bytes()
    if cached is not None:
        with suppress(OSError), tempfile.TemporaryDirectory(dir=folder) as directory:
            unfinished = Path(directory) / cached.name  # which appears in one step for other processes
            unfinished.write_bytes(content)
            unfinished.replace(cached)
    return content


def _cache_folder() -> Path | None:
    """The folder of compiled libraries; None if there is none that belongs to this user alone.

    Its files are code that will run. So a folder that another user owns, or may enter, is not used.
    """
    caches = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        folder = (caches if caches.is_absolute() else Path.home() / ".cache") / "torchserve-neuron-lstm"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = folder.lstat()
    except (OSError, RuntimeError):  # it cannot be made, or there is no home directory
        return None
    is_private = stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid() and not state.st_mode & 0o077
    return folder if is_private else None


def _digest(compiler: str, source: Path, options: Sequence[str]) -> str:
    """Digest of what decides the library: its sources, the compiler, its options, and this system's libraries."""
    program = Path(shutil.which(compiler) or compiler).resolve()
    state = program.stat()
    facts = {
        "files": {file.name: file.read_text(encoding="utf-8") for file in source.parent.iterdir() if file.is_file()},
        "options": options,
        "compiler": [str(program), state.st_size, state.st_mtime_ns, cpp_compiler.run([compiler, "-v"]).stderr],
        "system": [platform.machine(), *platform.libc_ver()],
        "environment": {name: os.environ[name] for name in os.environ if name.startswith(_COMPILER_VARIABLES)},
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
