"""Machine that compiled code is for, and a copy of the code where the machine may map it.

A directory may be on a file system that is mounted noexec.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Optional

from .interface import LoadError


@contextlib.contextmanager
def executable_copy(directory: Path, names: Sequence[str]) -> Iterator[Path]:
    """Yield the directory, or a temporary copy of these files where code may be mapped.

    The copy may be deleted once the code is mapped.

    Raises `LoadError`: the directory is on a file system mounted noexec, and no other directory is available.
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
        f"{directory} is on a file system mounted noexec, so its compiled programs cannot be run, and none of "
        f"{', '.join(map(str, _copy_directories()))} can hold a copy: set TMPDIR to a directory that is writable and "
        f"not noexec, or package the model with backend: onnxruntime"
    )


def _is_noexec(directory: Path) -> bool:
    return bool(os.statvfs(directory).f_flag & os.ST_NOEXEC)


def _copy_directories() -> list[Path]:
    """Directories for a copy, best first."""
    named = [os.environ[name] for name in ("TMPDIR", "XDG_RUNTIME_DIR", "HOME") if name in os.environ]
    return [Path(parent) for parent in dict.fromkeys([*named, tempfile.gettempdir()])]


@dataclass(frozen=True)
class _CpuTarget:
    """An instruction set to compile for: the one of most servers, not all of the packaging machine's."""

    isa: str
    """Value of the compiler's `-march`."""
    vector_bits: int
    cpu_flags: frozenset[str]
    """Features that a processor must have, as /proc/cpuinfo names them."""


# All that x86-64-v3 adds to x86-64. The kernel calls LZCNT abm and SSE3 pni. A virtual machine may hide any of them.
_X86_64_V3 = "abm avx avx2 bmi1 bmi2 cx16 f16c fma lahf_lm movbe pni popcnt sse4_1 sse4_2 ssse3 xsave"
_TARGETS = {
    "x86_64": _CpuTarget("x86-64-v3", 256, frozenset(_X86_64_V3.split())),
    "aarch64": _CpuTarget("armv8-a", 128, frozenset({"asimd"})),
}

REPACKAGE_HINT = "package the model again on such a host, or with backend: onnxruntime, which runs anywhere"


def cpu_target() -> _CpuTarget:
    """Return the instruction set to compile for here; `unsupported_reason` must be None."""
    return _TARGETS[platform.machine()]


def unsupported_reason() -> str | None:
    """Return why this machine is of no kind that code is compiled for; None if it is of one."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in _TARGETS:
        return f"compiled code is for Linux on {' or '.join(_TARGETS)}, this is {sys.platform} on {machine}"
    lacking = _TARGETS[machine].cpu_flags - cpu_flags()
    if lacking:
        return f"this machine's CPU lacks {', '.join(sorted(lacking))}, so programs could not be verified on it"
    return None


def host() -> Mapping[str, str]:
    """Return the operating system, the machine and the instruction set of code that is compiled here."""
    machine = platform.machine()
    isa = _TARGETS[machine].isa if machine in _TARGETS else "unknown"
    return {"system": sys.platform, "machine": machine, "isa": isa}


def check_host(packaged: Mapping[str, str]) -> None:
    """Refuse code of another machine.

    The processor would kill the process at the first unknown instruction.

    Raises `LoadError`: this machine is not of the kind that `host` returned while packaging.
    """
    for key, value in {"system": sys.platform, "machine": platform.machine()}.items():
        if packaged.get(key, value) != value:
            raise LoadError(
                f"the programs were compiled for {key} {packaged[key][:60]}, this host has {value}: {REPACKAGE_HINT}"
            )
    glibc = _glibc()
    if glibc is not None and _numbers(glibc) < _numbers(packaged.get("GLIBC", "0")):
        raise LoadError(
            f"the programs need glibc {packaged['GLIBC'][:60]}, this host has {glibc}: package the model again on a "
            f"machine whose system and compiler are no newer than this host's, or with backend: onnxruntime"
        )
    known = _TARGETS.get(platform.machine())
    if known is None:
        raise LoadError(f"the programs are compiled code, and there is none for {platform.machine()}: {REPACKAGE_HINT}")
    if packaged.get("isa", known.isa) != known.isa:
        raise LoadError(
            f"the programs were compiled for {packaged['isa'][:60]} CPUs, this host's is another: {REPACKAGE_HINT}"
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
