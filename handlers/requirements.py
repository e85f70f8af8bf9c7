"""Whether this host has the packages that an archive was compiled against."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from importlib import metadata
from importlib.util import find_spec


def check_requirements(requires: Iterable[tuple[str, str, str]], backend: str) -> None:
    """Every (distribution, module, version) is here, in a version that can run the archive.

    Code that inductor compiled is tied to torch's minor version; anything else runs on the version it was packaged
    with or a later one.

    Raises:
        RuntimeError: a package is missing or does not fit; says which to install.
    """
    for distribution, module, packaged in requires:
        here = installed_version(distribution, module)
        if here is None:
            raise RuntimeError(
                f"this archive needs {distribution}, which is not installed here: "
                f"pip install {distribution}=={packaged}"
            )
        tied = backend == "inductor" and distribution == "torch"
        if not (_same_minor(here, packaged) if tied else _at_least(here, packaged)):
            wanted = f"{'.'.join(map(str, _release(packaged)[:2]))}.*" if tied else packaged
            relation = "==" if tied else ">="
            raise RuntimeError(
                f"this archive was packaged with {distribution} {packaged}, here is {here}, which cannot run it: "
                f'pip install "{distribution}{relation}{wanted}", or package the model again with {here}'
            )


def installed_version(distribution: str, module: str) -> str | None:
    """The version of a package, whichever distribution (onnxruntime-gpu) brings the module; None if it is not here."""
    if find_spec(module) is None:
        return None
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        version = getattr(importlib.import_module(module), "__version__", None)
        return version if isinstance(version, str) else None


def _release(version: str) -> tuple[int, ...]:
    """The numbers a version begins with.

    >>> _release("2.13+cpu"), _release("2.14.0.dev20260101")
    ((2, 13, 0), (2, 14, 0))
    """
    numbers = re.match(r"(\d+)(?:\.(\d+))?(?:\.(\d+))?", version)
    return tuple(int(number or 0) for number in numbers.groups()) if numbers else (0, 0, 0)


def _same_minor(here: str, packaged: str) -> bool:
    return _release(here)[:2] == _release(packaged)[:2]


def _at_least(here: str, packaged: str) -> bool:
    return _release(here) >= _release(packaged)
