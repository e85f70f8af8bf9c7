"""Errors that an engine raises while it loads or runs a program."""

from __future__ import annotations

import sys

_OTHERS = {__name__.partition(".")[0], *sys.stdlib_module_names}


def is_engine_error(error: Exception) -> bool:
    """Whether an engine failed, and not the code of this package.

    Torch and OpenVINO raise RuntimeError. ONNX Runtime has classes of its own, directly below Exception.

    >>> is_engine_error(RuntimeError("out of memory"))
    True
    >>> is_engine_error(KeyError("name"))
    False
    """
    return isinstance(error, RuntimeError) or type(error).__module__.partition(".")[0] not in _OTHERS
