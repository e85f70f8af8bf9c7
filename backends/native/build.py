"""The kernel's source to shared libraries, one for each set of instructions worth having."""

from __future__ import annotations

import platform
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .. import cpp_compiler
from ..interface import CompileError

SOURCE = Path(__file__).with_name("recurrence.cpp")
HEADERS = ("atomic", "thread")
"""What the compiler must find to compile it."""


class InstructionSet(NamedTuple):
    """A set of instructions that the kernel is compiled for."""

    isa: str
    """As the compiler's `-march` names it."""
    cpu_flags: frozenset[str]
    """What a processor must have beyond what every host is asked for."""

    @property
    def library(self) -> str:
        """The file's name."""
        return f"recurrence-{self.isa}.so"


def instruction_sets() -> tuple[InstructionSet, ...]:
    """Those of this kind of machine, the fastest first; the last is what every host has."""
    most = InstructionSet(cpp_compiler.cpu_target().isa, frozenset())
    if platform.machine() != "x86_64":
        return (most,)
    return (InstructionSet("x86-64-v4", frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})), most)


def build(directory: Path) -> None:
    """Write every library.

    Raises:
        CompileError: the compiler refuses the source, which it does where it knows no vector extensions.
    """
    for one in instruction_sets():
        (directory / one.library).write_bytes(_library(cpp_compiler.compiler(), SOURCE, one.isa))


@cache
def _library(compiler: str, source: Path, isa: str) -> bytes:
    """One library. Kept, for it is the same for every program that this process compiles, and takes seconds."""
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory) / "recurrence.so"
        command = [
            *(compiler, "-std=c++17", "-O3", "-fPIC", "-shared", "-pthread", f"-march={isa}"),
            *("-ffp-contract=fast", str(source), "-o", str(library)),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            said = next((line for line in done.stderr.splitlines() if "error" in line), f"exit code {done.returncode}")
            raise CompileError(f"{command[0]} does not compile the kernel for {isa}: {said.strip()}")
        cpp_compiler.strip(library)
        return library.read_bytes()


def fastest_library() -> str:
    """The name of the library for this processor."""
    return next(one.library for one in instruction_sets() if one.cpu_flags <= cpp_compiler.cpu_flags())
