"""Description of an archive, as `GET /models/M?customized=true` returns it, and its readiness, tried on request."""

from __future__ import annotations

import logging
from dataclasses import asdict

from ..backends.registry import get_backend
from ..bucketing.shapes import TensorSpec
from ..config.manifest import Manifest
from .runtime.loader import ServedModel, warm_up
from .streaming.state import SessionSource

_STREAMING_KEYS = ("store", "idle_seconds", "max_sessions", "max_bytes", "fields", "state")


def describe(manifest: Manifest, threads: int) -> dict[str, object]:
    """Describe inputs, outputs, buckets, engine and measurements as a JSON object."""
    model, shadow, streaming = manifest.model, manifest.shadow, manifest.streaming
    return {
        "inputs": [_describe_tensor(spec) for spec in manifest.inputs],
        "outputs": [_describe_tensor(spec) for spec in manifest.outputs],
        "buckets": {"batch": list(manifest.grid.batches), "length": list(manifest.grid.lengths)},
        "overflow": manifest.overflow,
        "codec": manifest.codec,
        "kernel": manifest.kernel,
        "placement": manifest.placement,
        "backend": manifest.backend,
        "own_model": None
        if model is None
        else {"name": model.name, "file": model.file, "draws_random_numbers": model.draws, "reason": model.reason},
        "shadow": None
        if shadow is None
        else {"share": shadow.share, "on_difference": shadow.on_difference, "model": shadow.model.name},
        "short": None
        if manifest.short is None
        else {"fewer_than": manifest.shortest, "model": manifest.short.model.name},
        "precision": manifest.precision,
        "threads": threads,
        "tolerance": manifest.tolerance._asdict(),
        "runs": {"as": manifest.kind, "reason": manifest.kind_reason, "shapes": manifest.shapes},
        "longest": manifest.longest,
        **({"shortest": manifest.shortest_accepted} if manifest.shortest_accepted > 1 else {}),
        "carried": [_describe_tensor(value.spec) for value in manifest.carried],
        "streaming": None if streaming is None else {key: asdict(streaming)[key] for key in _STREAMING_KEYS},
        "checks": [check.bucket._asdict() | {"max_error": check.max_error} for check in manifest.checks],
        "costs": [
            {"program": cost.part} | cost.bucket._asdict() | {"milliseconds": cost.milliseconds}
            for cost in manifest.costs
        ],
        "estimates": [
            {"program": variant.part} | variant.bucket._asdict() | {"microseconds": variant.estimate_us}
            for variant in manifest.variants
            if variant.estimate_us is not None and variant.bucket is not None
        ],
        "simulation": get_backend(manifest.backend).simulation(),
        "requires": {distribution: version for distribution, _, version in manifest.requires},
        "host": dict(manifest.host),
        "produced_by": dict(manifest.produced_by),
    }


def _describe_tensor(spec: TensorSpec) -> dict[str, object]:
    limits: dict[str, object] = {
        "vocabulary": spec.vocabulary,
        "range": None if spec.value_range is None else list(spec.value_range),
        "missing": "nan" if spec.nan else None,
    }
    known = {name: limit for name, limit in limits.items() if limit is not None}
    return {"name": spec.name, "dtype": spec.dtype, "shape": list(spec.shape), **known}


_log = logging.getLogger(__name__)


def readiness(model: ServedModel, sessions: SessionSource | None) -> dict[str, object]:
    """Try the engine and the store, and return what works as a JSON object.

    `warm_up` is the number of buckets that this worker ran before its first request. `store` is None for a model that
    stores no sessions. Causes are in the worker's log only, because they can name paths of the host.
    """
    buckets = model.manifest.grid.buckets
    engine = _runs(model)
    store = None if sessions is None else sessions.available()
    return {"ready": engine and store is not False, "engine": engine, "warm_up": len(buckets), "store": store}


def _runs(model: ServedModel) -> bool:
    own = model.manifest.model
    if own is not None and not own.answers_padding:
        return True  # it was made, and there is no request to try it with
    try:
        warm_up(model, model.manifest.grid.buckets[0], rows=1)
    except Exception:  # noqa: BLE001 - whatever the engine raises, it does not work
        _log.exception("the model is not ready: its engine does not work")
        return False
    return True
