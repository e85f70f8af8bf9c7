"""Manifests, `variants.json`, as a worker reads them.

The property: a manifest is read, or refused with a `ManifestError`. A manifest that was read can be written, and reads
as the same.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from torchserve_neuron_lstm.config.manifest import FILE_NAME, ManifestError, parse_manifest, read_manifest
from torchserve_neuron_lstm.config.manifest_writer import manifest_text

from ..mutation.json_text import RawText, json_text, mutate_json
from ..properties import require
from ..served.manifests import written_manifests
from ..target import OctetMutation, Target

WORDS = (
    *("format", "backend", "requires", "host", "inputs", "takes_lengths", "outputs", "padding", "overflow", "kind"),
    *("carried", "grid", "shapes", "longest", "variants", "costs", "padding_costs", "weights", "streaming", "files"),
    *("name", "dtype", "shape", "pad_value", "vocabulary", "batch", "time", "part", "bucket", "directory", "fill"),
    *("sequence", "chunk", "start", "head", "any", "exact_lengths", "truncate", "float32", "int64", "bool", "cores"),
    *("redis://a", "rediss://[::1]:0/1", "redis://a:b/c", "redis://a/1?x", "time//0", "time**9", "Max(time, 2)"),
    *("(" * 300 + "time" + ")" * 300, "-" * 900 + "time", "time+" * 900 + "1", "a\x00b", "../x", "/x", "a//b", "inf"),
    *("store", "disk", "redis", "client", "state", "url", "fields", "accepted", "limits", "produced_by"),
)
_MEMORY = Path("/dev/shm")  # noqa: S108 - a new folder in it is our own


_REDIS = ("sessions_redis", "streaming", "redis")
_WRONG: Mapping[str, tuple[tuple[str | int, ...], object]] = {
    "password_in_url": ((*_REDIS, "url"), "redis://user:password@host/0"),
    "wrong_url": ((*_REDIS, "url"), "redis://[::1/0"),
    "certificate_without_tls": ((*_REDIS, "url"), "redis://host/0"),
    "user_without_password": ((*_REDIS, "password_env"), None),
    "no_time": ((*_REDIS, "timeout_seconds"), 0),
    "negative_replicas": ((*_REDIS, "replicas"), -1),
    "database_of_a_cluster": ((*_REDIS, "cluster"), True),
    "sessions_fewer_than_partitions": (("sessions_cluster", "streaming", "max_sessions"), 15),
    "redis_on_disk": (("sessions_redis", "streaming", "store"), "disk"),
    "short_state": (("sessions_disk", "streaming", "state"), "ab"),
    "no_sessions": (("sessions_disk", "streaming", "max_sessions"), 0),
    "another_field": (("sessions_disk", "streaming", "fields", "other"), "x"),
    "sessions_of_whole_sequences": (("sessions_disk", "kind"), "sequence"),
    "size_below_zero": (("plain", "inputs", 0, "shape"), ["batch", -1]),
    "bucket_of_zero": (("plain", "variants", 0, "bucket", "batch"), 0),
    "carried_with_time": (("chunks", "carried", 0, "spec", "shape"), ["batch", "time"]),
    "no_timesteps": (("plain", "longest"), 0),
    "padding_costs_of_a_grid": (("every_shape", "shapes"), "grid"),
    "missing_program": (("plain", "variants"), []),
    "list_for_an_object": (("rich", "requires", 0), []),
    "endless_cost": (("rich", "costs", 0, "milliseconds"), RawText("1e999")),
    "negated_time": (("rich", "outputs", 1, "shape", 1), "-(-time)"),
    "larger_of_two": (("rich", "outputs", 1, "shape", 1), "Max(time, 2)"),
    "attribute_of_time": (("rich", "outputs", 1, "shape", 1), "time.real"),
}
"""Changes after which a manifest is refused, or read in a rare way: the manifest's name and the place, and a value."""


def seeds() -> Mapping[str, bytes]:
    """Return manifests of every kind, as packaging writes them, and changed ones that chance rarely makes."""
    written = {name: manifest_text(manifest).encode() for name, manifest in written_manifests().items()}
    return written | {name: _changed(written, *change) for name, change in _WRONG.items()}


def _changed(written: Mapping[str, bytes], place: tuple[str | int, ...], value: object) -> bytes:
    name, *path, last = place
    whole: Any = json.loads(written[str(name)])
    part = whole
    for key in path:
        part = part[key]
    part[last] = value
    return json_text(whole).encode()


def mutate(content: bytes, random: Random, mutate_octets: OctetMutation) -> bytes:
    """Change a part of a manifest, or some of its bytes."""
    changed = mutate_json(content, WORDS, random) if random.random() < 0.9 else None
    return mutate_octets(content) if changed is None else changed


def check(content: bytes) -> None:
    """Read a file of these bytes as a manifest.

    Raises:
        PropertyViolation: what was read cannot be written, or reads as another manifest.
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
        "config/manifest.py": ("verify_files", "sha256_of", "_complaint", "input_names"),
        "config/json_codec.py": (
            *("read_json", "write_json", "to_json", "_write_annotated", "_write_union", "_write_list"),
            *("_write_mapping", "_write_object", "_write_leaf"),
        ),
        "config/request_limits.py": (),
        "bucketing/time_sizes.py": ("size_at",),
        "sessions/settings.py": ("Limits", "limits", "normalize_field_name", "server"),
        "sessions/redis_url.py": ("__str__",),
    },
)
