"""Code that a C++ compiler makes: with which compiler, for which processors, and mapped from where."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .interface import CompileError, LoadError


@dataclass(frozen=True)
class CpuTarget:
    """The instructions to compile for: what most servers have, not all that the packaging machine has."""

    isa: str
    """As the compiler's `-march` names them."""
    vector_bits: int
    cpu_flags: frozenset[str]
    """What a processor must have, by the kernel's names."""


_TARGETS = {
    "x86_64": CpuTarget("x86-64-v3", 256, frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"})),
    "aarch64": CpuTarget("armv8-a", 128, frozenset({"asimd"})),
}

REPACKAGE_HINT = "package the model again on such a host, or with backend: onnxruntime, which runs anywhere"


def cpu_target() -> CpuTarget:
    """What is compiled for here, once `unavailable_reason` has found nothing wrong."""
    return _TARGETS[platform.machine()]


def compiler() -> str:
    """The C++ compiler's command."""
    return os.environ.get("CXX", "g++")


def unavailable_reason(headers: Sequence[str] = ()) -> str | None:
    """Why code cannot be made here that includes these headers; None where it can."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in _TARGETS:
        return f"compiled code is for Linux on {' or '.join(_TARGETS)}, this is {sys.platform} on {machine}"
    lacking = _TARGETS[machine].cpu_flags - cpu_flags()
    if lacking:
        return f"this machine's CPU lacks {', '.join(sorted(lacking))}, so programs could not be verified on it"
    return _compiler_problem(compiler(), tuple(headers))


def host() -> Mapping[str, str]:
    """The operating system, the machine and the instructions that code made here is for."""
    machine = platform.machine()
    isa = _TARGETS[machine].isa if machine in _TARGETS else "unknown"
    return {"system": sys.platform, "machine": machine, "isa": isa}


def check_host(packaged: Mapping[str, str]) -> None:
    """Refuse before the processor would: it kills the process at the first instruction that it does not know.

    Raises:
        LoadError: this machine is not of the kind that `host` named where the code was made.
    """
    for what, value in {"system": sys.platform, "machine": platform.machine()}.items():
        if packaged.get(what, value) != value:
            raise LoadError(
                f"the programs were compiled for {what} {packaged[what]}, this host has {value}: {REPACKAGE_HINT}"
            )
    known = _TARGETS.get(platform.machine())
    if known is None or packaged.get("isa", known.isa) != known.isa:
        raise LoadError(
            f"the programs were compiled for {packaged.get('isa')} CPUs, this host's is another: {REPACKAGE_HINT}"
        )
    lacking = known.cpu_flags - cpu_flags()
    if lacking:
        names = ", ".join(sorted(lacking))
        raise LoadError(f"the programs were compiled for {known.isa} CPUs, this host's lacks {names}: {REPACKAGE_HINT}")


@cache
def cpu_flags() -> frozenset[str]:
    """The instruction sets of this machine, by the kernel's names."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    found = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return frozenset(found.partition(":")[2].split())


@cache
def _compiler_problem(compiler: str, headers: tuple[str, ...]) -> str | None:
    """What is wrong with the C++ compiler: tried, because a compiler without its headers is found as well."""
    install = "install one (Debian, Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++), or name yours in CXX"
    if shutil.which(compiler) is None:
        return f"there is no C++ compiler {compiler} here: {install}"
    includes = "".join(f"#include <{header}>\n" for header in (*headers, "vector"))
    with tempfile.TemporaryDirectory(prefix="probe-") as scratch:
        source = Path(scratch) / "probe.cpp"
        source.write_text(f"{includes}int probe() {{ return std::vector<int>(1).at(0); }}\n")
        options = ["-std=c++20", "-shared", "-fPIC", *(["-fopenmp"] if "omp.h" in headers else [])]
        command = [compiler, *options, str(source), "-o", f"{scratch}/probe.so"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return None
    reason = next((line for line in result.stderr.splitlines() if "error" in line), f"exit code {result.returncode}")
    return f"the C++ compiler {compiler} does not work ({reason.strip()}): {install}"


def reject_instruction_flags(args: Sequence[str]) -> None:
    """A host is asked for the instructions of the target: code with others would be killed there.

    Raises:
        CompileError: an argument for the compiler's command line chooses instructions.
    """
    for arg in args:
        if arg.startswith("-m") and not arg.startswith("-mtune="):
            raise CompileError(
                f"compiler_args: {arg} chooses instructions, but programs are compiled for those that every host is "
                f"asked for ({cpu_target().isa}): leave it out"
            )


def strip(library: Path) -> None:
    """Leave out what only a debugger reads: four fifths. Comes with every compiler; without it the file is larger."""
    tool = shutil.which("strip")
    if tool is not None:
        subprocess.run([tool, "--strip-all", str(library)], check=True, capture_output=True)


@contextlib.contextmanager
def executable_copy(directory: Path, names: Sequence[str]) -> Iterator[Path]:
    """The directory, or a copy of its files of these names where code may be mapped, which may go as soon as it is.

    Raises:
        LoadError: it lies on a file system that forbids programs, and there is no other place.
    """
    if not _forbids_programs(directory):
        yield directory
        return
    for place in _places():
        if place.is_dir() and os.access(place, os.W_OK) and not _forbids_programs(place):
            with tempfile.TemporaryDirectory(prefix="neuron-lstm-", dir=place) as copy:
                for name in names:
                    shutil.copyfile(directory / name, Path(copy) / name)
                yield Path(copy)
            return
    raise LoadError(
        f"{directory} lies on a file system mounted noexec, so its compiled programs cannot be run, and none of "
        f"{', '.join(map(str, _places()))} can hold a copy: set TMPDIR to a directory that is writable and not "
        f"noexec, or package the model with backend: onnxruntime"
    )


def _forbids_programs(directory: Path) -> bool:
    return bool(os.statvfs(directory).f_flag & os.ST_NOEXEC)


def _places() -> list[Path]:
    """Where a copy may lie, best first."""
    named = [os.environ[name] for name in ("TMPDIR", "XDG_RUNTIME_DIR", "HOME") if name in os.environ]
    return [Path(place) for place in dict.fromkeys([*named, tempfile.gettempdir()])]
