"""Packages that an archive needs on its host."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from importlib.util import find_spec

from ...backends.registry import get_backend
from ...backends.versions import newer_than_tested, release

_log = logging.getLogger(__name__)


def check_requirements(requires: Iterable[tuple[str, str, str]], backend: str) -> None:
    """Check that every required package is installed, in a version that can run the archive.

    Code of an engine that pins torch's minor version needs that one; anything else runs on the version that it requires
    or a later one. A torch that is newer than all that were run is logged once.

    Raises `RuntimeError`: a package is missing or does not fit; the message says which to install.
    """
    installed = []
    for distribution, module, packaged in requires:
        here = installed_version(distribution, module)
        if here is None:
            raise RuntimeError(
                f"this archive needs {distribution}, which is not installed here: "
                f'pip install "{distribution}>={packaged}"'
            )
        installed.append((distribution, packaged, here))
    for distribution, packaged, here in installed:
        pinned = distribution == "torch" and get_backend(backend).pins_torch_minor
        given, needed = release(here), release(packaged)
        if not (given[:2] == needed[:2] if pinned else given >= needed):
            wanted = f"{'.'.join(map(str, needed[:2]))}.*" if pinned else packaged
            relation = "==" if pinned else ">="
            raise RuntimeError(
                f"this archive needs {distribution} {relation} {wanted}; version {here} is installed, which cannot run "
                f'it: pip install "{distribution}{relation}{wanted}", or package the model again for {here}'
            )
        if distribution == "torch" and (message := newer_than_tested(here)) is not None:
            _warn_once(message)


@cache
def _warn_once(message: str) -> None:
    _log.warning("%s", message)


def installed_version(distribution: str, module: str) -> str | None:
    """Return the version of a package, of whichever distribution (onnxruntime-gpu) has the module. None if missing."""
    if find_spec(module) is None:
        return None
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        version = getattr(importlib.import_module(module), "__version__", None)
        return version if isinstance(version, str) else None
