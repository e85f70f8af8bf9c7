"""Letting a trace take any number of rows."""

from __future__ import annotations

from .traced import Traced


def dynamic_batch(traced: Traced) -> Traced:
    """Let `traced` take any number of rows; it is changed in place, and given back.

    Rows are dimension 0 of every input and every answer. A call costs as many runs as it has chunks of the example's
    rows. Where a row is missing in the last chunk, its last row stands in.

    Raises:
        ValueError: dimension 0 is not the batch of every input and answer (time-major data, a state of layers by rows),
            is not the same for all, or the trace has buckets or keeps state, which chunks would mix.
    """
    if traced.kernel is not None:
        raise ValueError("a trace of buckets chooses one by its kernel: give it a bucket for each batch instead")
    if traced.contents.aliases:
        raise ValueError(
            "a trace that keeps state between calls cannot be cut into chunks: each would change the state"
        )
    if traced.contents.no_batch is not None:
        raise ValueError(f"dynamic_batch: {traced.contents.no_batch}")
    traced.any_batch = True
    return traced
