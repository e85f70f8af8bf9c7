"""Manifests, `variants.json`, as a worker reads them.

The law: a manifest is read, or refused with a `ManifestError`; one that is read can be written, and reads as the same.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from random import Random

from torchserve_neuron_lstm.config.manifest import (
    FILE_NAME,
    ManifestError,
    manifest_text,
    parse_manifest,
    read_manifest,
)

from ..law import require
from ..mutation.json_text import mutate_json
from ..served.manifests import written_manifests
from ..target import OctetMutation, Target

WORDS = (
    *("format", "backend", "requires", "host", "inputs", "takes_lengths", "outputs", "padding", "overflow", "kind"),
    *("carried", "grid", "shapes", "longest", "variants", "costs", "padding_costs", "weights", "streaming", "files"),
    *("name", "dtype", "shape", "pad_value", "vocabulary", "batch", "time", "part", "bucket", "directory", "fill"),
    *("sequence", "chunk", "start", "head", "any", "exact_lengths", "truncate", "float32", "int64", "bool", "cores"),
    *("redis://a", "rediss://[::1]:0/1", "redis://a:b/c", "redis://a/1?x", "time//0", "time**9", "max(time, 2)"),
    *("(" * 300 + "time" + ")" * 300, "-" * 900 + "time", "time+" * 900 + "1", "a\x00b", "../x", "/x", "a//b", "inf"),
    *("store", "disk", "redis", "client", "state", "url", "fields", "accepted", "limits", "produced_by"),
)
_MEMORY = Path("/dev/shm")  # noqa: S108 - a new folder in it is our own


def seeds() -> Mapping[str, bytes]:
    """Return manifests of every kind, as packaging writes them: all of them are read."""
    return {name: manifest_text(manifest).encode() for name, manifest in written_manifests().items()}


def mutate(content: bytes, random: Random, mutate_octets: OctetMutation) -> bytes:
    """Change a part of a manifest, or some of its bytes."""
    changed = mutate_json(content, WORDS, random) if random.random() < 0.9 else None
    return mutate_octets(content) if changed is None else changed


def check(content: bytes) -> None:
    """Read a file of these bytes as a manifest.

    Raises:
        BrokenLaw: what was read cannot be written, or reads as another manifest.
    """
    directory = _directory()
    (directory / FILE_NAME).write_bytes(content)
    try:
        manifest = read_manifest(directory)
    except ManifestError:
        return
    require(parse_manifest(manifest_text(manifest)) == manifest, "a manifest that was written reads as the same")


@cache
def _directory() -> Path:
    # In memory where there is such a folder: writing a file for each input takes longer than reading it does.
    parent = _MEMORY if _MEMORY.is_dir() else None
    directory = tempfile.mkdtemp(prefix="fuzz-manifest-", dir=parent)
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)


TARGET = Target(
    seeds,
    mutate,
    check,
    {
        "config/manifest.py": (
            *("manifest_text", "write_manifest", "digest_files", "verify_files", "sha256_of"),
            *("_is_archived", "_with_sorted_mappings"),
        ),
        "config/json_codec.py": (
            *("read_json", "write_json", "to_json", "_write_annotated", "_write_union", "_write_list"),
            *("_write_mapping", "_write_object", "_write_leaf"),
        ),
        "config/request_limits.py": (),
        "bucketing/time_sizes.py": ("size_at",),
        "sessions/settings.py": (
            "Limits",
            "limits",
            "normalize_field_name",
            "host",
            "port",
            "database",
            "tls",
            "address",
        ),
    },
)
