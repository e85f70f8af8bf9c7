"""C++ compiler: its command, the instruction set that it targets, and loading of the code that it
makes.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Optional

from .interface import CompileError, LoadError


@dataclass(frozen=True)
class CpuTarget:
    """An instruction set to compile for: the one of most servers, not all of the packaging machine's."""

    isa: str
    """Value of the compiler's `-march`."""
    vector_bits: int
    cpu_flags: frozenset[str]
    """Features that a processor must have, as /proc/cpuinfo names them."""


# All that x86-64-v3 adds to x86-64. The kernel calls LZCNT abm and SSE3 pni. A virtual machine may hide any of them.
_X86_64_V3 = "abm avx avx2 bmi1 bmi2 cx16 f16c fma lahf_lm movbe pni popcnt sse4_1 sse4_2 ssse3 xsave"
_TARGETS = {
    "x86_64": CpuTarget("x86-64-v3", 256, frozenset(_X86_64_V3.split())),
    "aarch64": CpuTarget("armv8-a", 128, frozenset({"asimd"})),
}

REPACKAGE_HINT = "package the model again on such a host, or with backend: onnxruntime, which runs anywhere"


def cpu_target() -> CpuTarget:
    """Return the instruction set to compile for here; `unavailable_reason` must be None."""
    return _TARGETS[platform.machine()]


def compiler() -> str:
    """Return the command of the C++ compiler."""
    return os.environ.get("CXX", "g++")


def unavailable_reason(headers: Sequence[str] = ()) -> str | None:
    """Return why code with these headers cannot be compiled here; None if it can."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in _TARGETS:
        return f"compiled code is for Linux on {' or '.join(_TARGETS)}, this is {sys.platform} on {machine}"
    lacking = _TARGETS[machine].cpu_flags - cpu_flags()
    if lacking:
        return f"this machine's CPU lacks {', '.join(sorted(lacking))}, so programs could not be verified on it"
    return _compiler_problem(compiler(), tuple(headers))


def host() -> Mapping[str, str]:
    """Return the operating system, the machine and the instruction set of code that is compiled here."""
    machine = platform.machine()
    isa = _TARGETS[machine].isa if machine in _TARGETS else "unknown"
    return {"system": sys.platform, "machine": machine, "isa": isa}


def check_host(packaged: Mapping[str, str]) -> None:
    """Refuse code of another machine: the processor would kill the process at the first unknown
    instruction.

    Raises:
        LoadError: this machine is not of the kind that `host` returned while packaging.
    """
    for key, value in {"system": sys.platform, "machine": platform.machine()}.items():
        if packaged.get(key, value) != value:
            raise LoadError(
                f"the programs were compiled for {key} {packaged[key]}, this host has {value}: {REPACKAGE_HINT}"
            )
    glibc = _glibc()
    if glibc is not None and _numbers(glibc) < _numbers(packaged.get("GLIBC", "0")):
        raise LoadError(
            f"the programs need glibc {packaged['GLIBC']}, this host has {glibc}: package the model again on a machine "
            f"whose system and compiler are no newer than this host's, or with backend: onnxruntime"
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


def _glibc() -> Optional[str]:
    """Return the version of the C library; None if it is another one than glibc."""
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")[2] or None
    except (AttributeError, OSError, ValueError):
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


@cache
def cpu_flags() -> frozenset[str]:
    """Return the features of this processor, as /proc/cpuinfo names them."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    found = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return frozenset(found.partition(":")[2].split())


@cache
def _compiler_problem(compiler: str, headers: tuple[str, ...]) -> str | None:
    """A problem of the C++ compiler. It is tried, because a compiler without its headers is found as well."""
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
    """Reject compiler arguments that choose an instruction set: hosts are checked only for that of the
    target.

    Raises:
        CompileError: an argument chooses an instruction set.
    """
    for arg in args:
        if arg.startswith("-m") and not arg.startswith("-mtune="):
            raise CompileError(
                f"compiler_args: {arg} chooses an instruction set, but programs are compiled for the one that every "
                f"host must have ({cpu_target().isa}): leave it out"
            )


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a compiler; if this process is interrupted, it ends, with the processes that it started."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            stdout, stderr = process.communicate()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def strip(library: Path) -> None:
    """Strip debug symbols, four fifths of the file, if `strip` is installed; it comes with every compiler."""
    tool = shutil.which("strip")
    if tool is not None:
        subprocess.run([tool, "--strip-all", str(library)], check=True, capture_output=True)


@contextlib.contextmanager
def executable_copy(directory: Path, names: Sequence[str]) -> Iterator[Path]:
    """Yield the directory, or a temporary copy of these files where code may be mapped.

    The copy may be deleted once the code is mapped.

    Raises:
        LoadError: the directory is on a file system mounted noexec, and no other directory is available.
    """
    if not _is_noexec(directory):
        yield directory
        return
    for parent in _copy_directories():
        if parent.is_dir() and os.access(parent, os.W_OK) and not _is_noexec(parent):
            with tempfile.TemporaryDirectory(prefix="neuron-lstm-", dir=parent) as copy:
                for name in names:
                    shutil.copyfile(directory / name, Path(copy) / name)
                yield Path(copy)
            return
    raise LoadError(
        f"{directory} lies on a file system mounted noexec, so its compiled programs cannot be run, and none of "
        f"{', '.join(map(str, _copy_directories()))} can hold a copy: set TMPDIR to a directory that is writable and "
        f"not noexec, or package the model with backend: onnxruntime"
    )


def _is_noexec(directory: Path) -> bool:
    return bool(os.statvfs(directory).f_flag & os.ST_NOEXEC)


def _copy_directories() -> list[Path]:
    """Directories for a copy, best first."""
    named = [os.environ[name] for name in ("TMPDIR", "XDG_RUNTIME_DIR", "HOME") if name in os.environ]
    return [Path(parent) for parent in dict.fromkeys([*named, tempfile.gettempdir()])]
