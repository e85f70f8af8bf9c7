"""Files of the package that an archive carries: of every archive, of its engine, of its session store.

Packaging copies them. `registry.py` has the files of each engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .registry import CPU_FILES, ENGINES

BASE = (
    "__init__.py",
    "handlers/**/*.py",
    "bucketing/*.py",
    "sessions/**/*.py",
    "config/__init__.py",
    "config/manifest.py",
    "config/manifest_values.py",
    "config/json_codec.py",
    "config/request_limits.py",
    "backends/__init__.py",
    "backends/cores.py",
    "backends/fork_threads.py",
    "backends/interface.py",
    "backends/program_files.py",
    "backends/registry.py",
    "backends/safetensors_file.py",
    "backends/signature.py",
    "backends/versions.py",
    "backends/weights.py",
    "backends/weights_error.py",
    "backends/partitioning/__init__.py",
    "backends/partitioning/partitioned_program.py",
)
"""Files of the package that every archive carries; glob patterns."""

STORE_FILES: Mapping[str, tuple[str, ...]] = {
    "disk": (
        "sessions/admission.py",
        "sessions/sqlite/__init__.py",
        "sessions/sqlite/changes.py",
        "sessions/sqlite/checkpoints.py",
        "sessions/sqlite/expiry.py",
        "sessions/sqlite/file.py",
        "sessions/sqlite/rows.py",
        "sessions/sqlite/store.py",
        "sessions/store_time.py",
    ),
    "redis": (
        "sessions/admission.py",
        "sessions/redis/__init__.py",
        "sessions/redis/connections.py",
        "sessions/redis/node.py",
        "sessions/redis/partition.py",
        "sessions/redis/partitions.py",
        "sessions/redis/scripts.py",
        "sessions/redis/store.py",
        "sessions/store_time.py",
    ),
}
"""Files of the package that only sessions in this store need."""

_PACKAGING_ONLY = ("bucketing/bucket_lengths.py",)

_HERE = Path(__file__).parent


def travelling_files(name: str, *, cpu_segments: bool = False, store: str | None = None) -> tuple[Path, ...]:
    """Return the files that an archive served by this engine carries, relative to the package.

    `cpu_segments`: a program is partitioned between the engine and the CPU. `store`: where sessions are; None: the
    archive serves none. An engine of another distribution is installed with that distribution.
    """
    package = _HERE.parent
    own = (*(ENGINES[name].files if name in ENGINES else ()), *(CPU_FILES if cpu_segments else ()))
    patterns = (*BASE, *(f"{_HERE.name}/{file}" for file in own))
    found = {path.relative_to(package) for pattern in patterns for path in package.glob(pattern)}
    of_stores = {file for files in STORE_FILES.values() for file in files} - set(STORE_FILES.get(store or "", ()))
    return tuple(sorted(found - {Path(file) for file in (*_PACKAGING_ONLY, *of_stores)}))
