"""Kind of machine that compiled code is for: its system, its instruction set and its C library.

Code is compiled for an instruction set that most servers have. A host is checked before the code is mapped.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Optional

from .interface import LoadError


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

    Raises:
        LoadError: this machine is not of the kind that `host` returned while packaging.
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
