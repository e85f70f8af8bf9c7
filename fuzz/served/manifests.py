"""Manifests of the fuzzed services: together they have every way in which a request is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torchserve_neuron_lstm.bucketing.shapes import BucketGrid, CarriedValue, TensorSpec
from torchserve_neuron_lstm.config.manifest import AcceptedRange, Manifest, MeasuredCost, MeasuredError, Variant
from torchserve_neuron_lstm.config.request_limits import RequestLimits
from torchserve_neuron_lstm.sessions.settings import RedisSettings, SessionFields, SessionSettings

GRID = BucketGrid(batches=(1, 4), lengths=(4, 8))
IDS = TensorSpec("ids", "int64", ("batch", "time"), vocabulary=100)
FRAMES = TensorSpec("frames", "float32", ("batch", "time", 2))
MEANS = TensorSpec("means", "float32", ("batch", "time"))
CLASSES = TensorSpec("classes", "float32", ("batch", 3))
TOTAL = TensorSpec("total", "float32", ("batch",))
_SUM = CarriedValue(TensorSpec("sum", "float32", ("batch", 1)), 0.0)
_LARGEST = CarriedValue(TensorSpec("largest", "float32", ("batch", 1)), -math.inf)
STATE_ID = "ab" * 16
FIELDS = SessionFields("session", "start", "end", "step", "token")
LIMITS = RequestLimits(sequences=16, timesteps=100, body_bytes=1 << 16)
KIND = TensorSpec("kind", "uint8", ("batch", 3), value_range=(0.0, 50.0))
COSTS = tuple(MeasuredCost("sequence", bucket, 10.0) for bucket in GRID.buckets)
"""Ten milliseconds for each call."""
TIME_FIRST = (
    TensorSpec("grid", "float32", ("time", "batch", 2, 2)),
    TensorSpec("mask", "bool", ("batch", "time")),
    TensorSpec("half", "bfloat16", ("batch", "time")),
    KIND,
)
"""Inputs of four dtypes: time before batch, one without time, one with a range of values."""


def make_manifest(*inputs: TensorSpec, **facts: Any) -> Manifest:
    """Return the manifest of a model over `GRID`, with some values changed."""
    given: dict[str, Any] = {
        "backend": "eager",
        "requires": (),
        "host": {},
        "inputs": inputs,
        "takes_lengths": True,
        "outputs": (MEANS,),
        "padding": "masked",
        "padding_reason": "lengths are given",
        "overflow": "reject",
        "kind": "sequence",
        "kind_reason": "it reads the whole sequence",
        "carried": (),
        "grid": GRID,
        "shapes": "grid",
        "longest": GRID.lengths[-1],
        "variants": tuple(Variant("sequence", bucket, "programs/eager") for bucket in GRID.buckets),
        "checks": (),
        "costs": (),
        "limits": LIMITS,
    }
    return Manifest(**given | facts)


def session_manifest(**settings: Any) -> Manifest:
    """Return the manifest of a streaming model, with some settings of its sessions."""
    given: dict[str, Any] = {"store": "disk", "state": STATE_ID, "fields": FIELDS}
    return make_manifest(
        IDS,
        outputs=(MEANS, TOTAL),
        kind="chunk",
        kind_reason="a sum is carried",
        carried=(_SUM,),
        longest=64,
        streaming=SessionSettings(**given | settings),
        variants=(Variant("chunk", None, "programs/eager/chunk"), Variant("head", None, "programs/eager/head")),
    )


def written_manifests() -> Mapping[str, Manifest]:
    """Return manifests that have every field of a written one, by name."""
    redis = RedisSettings("rediss://sessions.example:6380/1", "neuron", "PASSWORD", "ca.pem", 2.0, 1)
    cluster = RedisSettings("redis://sessions.example", replicas=1, cluster=True)
    rich: dict[str, Any] = {
        "requires": (("torch", "torch", "2.13.0"),),
        "host": {"machine": "x86_64"},
        "outputs": (MEANS, TensorSpec("logits", "float32", ("batch", "(time - 1)//2 + 1", 3))),
        "checks": (MeasuredError(GRID.buckets[0], 1e-6),),
        "costs": (MeasuredCost("sequence", GRID.buckets[0], 0.5),),
        "weights": "weights.pt",
        "constants": "programs/constants.pt",
        "codec": "codec:Codec",
        "kernel": "kernel:choose",
        "placement": "cores",
        "threads": 2,
        "shortest": 2,
        "accepted": (AcceptedRange("frames", -1.0, 1.0),),
        "produced_by": {"torch": "2.13.0"},
        "files": {"weights.pt": "00" * 32, "programs/constants.pt": "11" * 32},
    }
    every_shape: dict[str, Any] = {
        "shapes": "any",
        "variants": (Variant("sequence", None, "programs/native", 12.5),),
        "padding_costs": (MeasuredCost("sequence", GRID.buckets[1], 0.25),),
    }
    return {
        "plain": make_manifest(IDS),
        "chunks": replace(session_manifest(), carried=(_SUM, _LARGEST), streaming=None),
        "rich": make_manifest(IDS, FRAMES, **rich),
        "every_shape": make_manifest(IDS, **every_shape),
        "sessions_disk": session_manifest(directory="/var/sessions", client_header="x-client"),
        "sessions_redis": session_manifest(store="redis", redis=redis, max_sessions=7, confirm_seconds=5.0),
        "sessions_cluster": session_manifest(store="redis", redis=cluster),
        "sessions_client": session_manifest(store="client", key_env="KEY", token_seconds=60.0),
    }
