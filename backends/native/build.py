"""Compilation of the recurrent library, once for each useful instruction set.

It takes seconds and is the same for every model, so it is in the cache of compiled programs.
"""

from __future__ import annotations

import os
import platform
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .. import cpp_compiler
from ..interface import CompileError

SOURCE = Path(__file__).with_name("recurrence.cpp")
HEADERS = ("atomic", "thread")
"""Headers that the compiler needs for it."""


class InstructionSet(NamedTuple):
    """An instruction set that the recurrent library is compiled for."""

    isa: str
    """Value of the compiler's `-march`."""
    cpu_flags: frozenset[str]
    """Processor features beyond those that every host must have."""

    @property
    def library(self) -> str:
        """Name of the library's file."""
        return f"recurrence-{self.isa}.so"


def instruction_sets() -> tuple[InstructionSet, ...]:
    """Return those of this kind of machine, the fastest first; every host has the last."""
    most = InstructionSet(cpp_compiler.cpu_target().isa, frozenset())
    if platform.machine() != "x86_64":
        return (most,)
    return (InstructionSet("x86-64-v4", frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})), most)


def build(directory: Path) -> None:
    """Write every library.

    Raises:
        CompileError: the compiler rejects the source, for example without vector extensions.
    """
    for one in instruction_sets():
        (directory / one.library).write_bytes(_library(cpp_compiler.compiler(), SOURCE, one.isa))


def is_built(directory: Path) -> bool:
    """Whether a program's directory has libraries, because its source calls them."""
    return any(directory.glob("recurrence-*.so"))


@cache
def _library(compiler: str, source: Path, isa: str) -> bytes:
    """One library, from the cache if it is there; this process reads or compiles it once."""
    from ..compile_cache import entries
    from ..compile_cache.folder import cache_folder
    from ..compile_cache.key import digest

    options = ("-std=c++17", "-O3", "-fPIC", "-shared", "-pthread", f"-march={isa}", "-ffp-contract=fast")
    folder = cache_folder(os.environ).path
    key = digest({"library": source.read_text(encoding="utf-8"), "options": options})
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory) / "recurrence.so"
        if folder is None or not entries.fetch(folder, key, library.parent):
            _compile([compiler, *options, str(source), "-o", str(library)], isa)
            cpp_compiler.strip(library)
            if folder is not None:
                entries.keep(folder, key, library.parent)
        return library.read_bytes()


def _compile(command: list[str], isa: str) -> None:
    done = cpp_compiler.run(command)
    if done.returncode != 0:
        said = next((line for line in done.stderr.splitlines() if "error" in line), f"exit code {done.returncode}")
        raise CompileError(f"{command[0]} does not compile the recurrent library for {isa}: {said.strip()}")


def fastest_library() -> str:
    """Return the name of the fastest library for this processor."""
    return next(one.library for one in instruction_sets() if one.cpu_flags <= cpp_compiler.cpu_flags())
