"""Example request for a model, as a shell command."""

from __future__ import annotations

import json
import shlex
from typing import Any
from urllib.parse import quote

from ..config.manifest import Manifest

_TIMESTEPS = 3


def curl_command(url: str, name: str, manifest: Manifest, *, torchserve: bool = False) -> str:
    """Return the command that sends one short sequence to a model.

    Where a codec reads requests it asks for the metadata instead. TorchServe has no path for them, and passes the
    header `describe` on to the handler. `url` is the server's, without a slash at the end.
    """
    model = quote(name, safe="")  # a shell reads none of it, and curl no pattern
    if manifest.codec is not None and torchserve:
        return shlex.join(["curl", "-s", "-H", "describe: True", f"{url}/predictions/{model}"])
    if manifest.codec is not None:
        return shlex.join(["curl", "-s", f"{url}/v2/models/{model}"])
    length = min(max(_TIMESTEPS, manifest.shortest), manifest.longest)
    values = {spec.name: _nested(spec.item_sizes(length), _value(spec.dtype)) for spec in manifest.inputs}
    body = json.dumps(next(iter(values.values())) if len(values) == 1 else values)
    return shlex.join(["curl", "-s", "-H", "Content-Type: application/json", "-d", body, f"{url}/predictions/{model}"])


def _value(dtype: str) -> bool | int | float:
    """An id that every vocabulary has, or a finite number."""
    if dtype == "bool":
        return True
    return 1 if "int" in dtype else 0.5


def _nested(sizes: tuple[int, ...], value: Any) -> Any:
    for size in reversed(sizes):
        value = [value] * size
    return value
