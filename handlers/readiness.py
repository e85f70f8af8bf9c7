"""Readiness of a model: its engine and its session store, tried on request."""

from __future__ import annotations

import logging

from .runtime.loader import ServedModel, warm_up
from .streaming.state import SessionSource

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
    try:
        warm_up(model, model.manifest.grid.buckets[0], rows=1)
    except Exception:  # noqa: BLE001 - whatever the engine raises, it does not work
        _log.exception("the model is not ready: its engine does not work")
        return False
    return True
