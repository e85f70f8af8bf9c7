"""The workers of a server: their process ids, which must stay."""

from __future__ import annotations

import urllib.error
from collections.abc import Mapping, Sequence

from torchserve_process import TorchServe

from .standing import Standing


def worker_pids(server: TorchServe, models: Sequence[str]) -> dict[str, int]:
    """Process ids of all workers, by the model's name and a number; none if the server does not answer."""
    try:
        pids = [(name, sorted(server.worker_pids(name))) for name in models]
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return {}
    return {f"{name} {number}": pid for name, of_model in pids for number, pid in enumerate(of_model, 1)}


def replaced_standing(before: Mapping[str, int], after: Mapping[str, int]) -> Standing:
    """The standing of workers that are not there after the run: none may be missing.

    >>> replaced_standing({"tagger 1": 7, "stream 1": 8}, {"tagger 1": 7, "stream 1": 9}).value
    1
    """
    return Standing("workers that were replaced", len(set(before.values()) - set(after.values())), 0, 0, "less")
