"""Suppression of the exporter's output: torch's exporter prints its graph before it fails."""

from __future__ import annotations

import contextlib
import io
import logging
import os
from collections.abc import Iterator


@contextlib.contextmanager
def without_exporter_log() -> Iterator[None]:
    """Keep torch's loggers and standard error silent, unless TORCH_LOGS asks for them."""
    if "TORCH_LOGS" in os.environ:
        yield
        return
    known = logging.Logger.manager.loggerDict.items()
    loggers = [entry for name, entry in known if name.startswith("torch") and isinstance(entry, logging.Logger)]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled
