"""Lines of the user's code in an exported graph.

torch's exporter keeps those of functions named `forward` only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch.fx.proxy import TracerBase


@contextlib.contextmanager
def lines_of_all_functions() -> Iterator[None]:
    """In this context, keep the lines of every function that `forward()` calls, such as other methods."""
    original = getattr(TracerBase, "_filter_traceback_frames", None)
    if original is None:  # an older torch keeps them
        yield
        return

    def filtered(self: Any, frames: Any) -> Any:
        before = getattr(self, "_record_forward_stack_traces_only", False)
        self._record_forward_stack_traces_only = False
        try:
            return original(self, frames)
        finally:
            self._record_forward_stack_traces_only = before

    TracerBase._filter_traceback_frames = filtered  # type: ignore[method-assign, assignment]  # until the context ends
    try:
        yield
    finally:
        TracerBase._filter_traceback_frames = original  # type: ignore[method-assign]  # as it was
