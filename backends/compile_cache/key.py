"""Key of a cached program: a digest of everything that decides what is compiled."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Optional

import torch

from .. import cpp_compiler, target_machine
from ..compilation.job import CompileJob
from ..registry import ENGINES

_PACKAGE = Path(__file__).parents[2]
_SOURCES = ("backends", "bucketing")
"""Folders of the package with the code that compiles."""
_VARIABLES = (
    *("TORCH", "AOT_INDUCTOR", "AOTINDUCTOR", "OMP_", "MKL_", "GCC_", "SOURCE_DATE_EPOCH"),
    *("CXX", "CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH"),
)
"""Beginnings of the names of environment variables that torch and compilers read."""
_PLACES = ("TORCHINDUCTOR_CACHE_DIR", "TORCH_HOME", "TORCH_EXTENSIONS_DIR")
"""Variables that name folders for files alone; torch sets the first itself."""


def program_key(job: CompileJob) -> Optional[str]:
    """Return the key of a job's program; None if it is not cached.

    Only programs of built-in engines whose toolchain is known are cached. Partitioned programs are not, nor those
    whose compiler is to leave its files in a directory.
    """
    versions = toolchain_versions(job.backend)
    settings = job.settings
    if job.content is None or versions is None:
        return None
    if job.partitioner is not None or settings.workdir is not None or settings.python is not None:
        return None
    return digest(
        {
            "content": job.content,
            "engine": job.backend,
            "role": job.part,
            "bucket": job.bucket,
            "precision": settings.precision,
            "arguments": settings.args,
            "packages": versions,
        }
    )


def toolchain_versions(engine: str) -> Optional[Mapping[str, Optional[str]]]:
    """Return the versions of what decides the code that an engine compiles; None if unknown."""
    spec = ENGINES.get(engine)
    if spec is None or spec.toolchain is None:
        return None
    return {name: _version(name) for name in spec.toolchain}


def digest(facts: Mapping[str, Any]) -> str:
    """Return the digest of facts about what is compiled, and of the code and machine that compile it."""
    known = {**facts, "code": _sources(), "machine": _machine(), "compiler": _compiler(cpp_compiler.compiler())}
    known["environment"] = {
        name: os.environ[name] for name in os.environ if name.startswith(_VARIABLES) and name not in _PLACES
    }
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def _version(distribution: str) -> Optional[str]:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


@cache
def _sources() -> str:
    """The digest of this package's own code that compiles."""
    hasher = hashlib.sha256()
    for folder in _SOURCES:
        for file in sorted(path for path in (_PACKAGE / folder).rglob("*") if path.suffix in (".py", ".cpp", ".h")):
            hasher.update(f"{file.relative_to(_PACKAGE).as_posix()}\n".encode() + file.read_bytes())
    return hasher.hexdigest()


@cache
def _machine() -> Mapping[str, Any]:
    """The processor and the system's libraries, with torch and Python."""
    return {
        "torch": [str(torch.__version__), torch.version.git_version],
        "python": sys.version,
        "platform": [sys.platform, platform.machine(), *platform.libc_ver()],
        "processor": sorted(target_machine.cpu_flags()) if sys.platform == "linux" else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),  # inductor divides loops by it
    }


@cache
def _compiler(command: str) -> Optional[list[str]]:
    """The C++ compiler: its file and what it prints about itself; None if there is none."""
    found = shutil.which(command)
    if found is None:
        return None
    file = Path(found).resolve()
    state = file.stat()
    said = [
        subprocess.run([found, option], capture_output=True, text=True, check=False).stdout
        for option in ("--version", "-dumpmachine")
    ]
    return [found, str(file), str(state.st_size), str(state.st_mtime_ns), *said]
