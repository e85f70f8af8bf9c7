"""Checks of single values of a manifest, and the bounds of one request.

Standard library only. Each check raises a ValueError that says what was expected. Digests do not say whether values are
sensible: who writes a manifest writes its digest too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple, Optional

from ..bucketing.shapes import Bucket, BucketGrid, CarriedValue, TensorSpec
from .json_codec import abbreviate

_LARGEST = 2**31 - 1
"""The largest size that a configuration can have."""
_MOST_BUCKETS = 1 << 16
"""Far more than anybody compiles or measures."""
_MOST_MILLISECONDS = 1e9
_LEAST_MILLISECONDS = 1e-6

WHOLE_NUMBERS = {
    "int64": (-(2**63), 2**63 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int8": (-128, 127),
    "uint8": (0, 255),
}
"""The least and the largest number of each dtype."""


def positive(number: int) -> None:
    """Refuse a number that is not within 1 and the largest size."""
    if not number > 0:
        raise ValueError(f"expected a positive number, got {number}")
    if number > _LARGEST:
        raise ValueError(f"expected at most {_LARGEST}, got {abbreviate(number)}")


def duration(milliseconds: float) -> None:
    """Refuse milliseconds that no call takes. Sums and ratios of others are finite."""
    if not milliseconds > 0:
        raise ValueError(f"expected a positive number, got {milliseconds}")
    if not _LEAST_MILLISECONDS <= milliseconds <= _MOST_MILLISECONDS:
        expected = f"{_LEAST_MILLISECONDS:g} to {_MOST_MILLISECONDS:g} milliseconds"
        raise ValueError(f"expected {expected}, got {abbreviate(milliseconds)}")


def positive_sizes(bucket: Bucket) -> None:
    """Refuse a bucket with a size that is not within 1 and the largest one."""
    if min(bucket) < 1:
        raise ValueError(f"expected positive sizes, got {bucket.batch} x {bucket.length}")
    for size in bucket:
        positive(size)


def valid_grid(grid: BucketGrid) -> None:
    """Refuse a grid of sizes that are too large, or of too many buckets."""
    for what, sizes in (("batches", grid.batches), ("lengths", grid.lengths)):
        if sizes[-1] > _LARGEST:
            raise ValueError(f"{what}: expected sizes of {_LARGEST} at most, got {abbreviate(sizes[-1])}")
    count = len(grid.batches) * len(grid.lengths)
    if count > _MOST_BUCKETS:
        raise ValueError(f"expected {_MOST_BUCKETS} buckets at most, got {count}")


def valid_spec(spec: TensorSpec) -> None:
    """Refuse a layout that no tensor has."""
    if not spec.name:
        raise ValueError("name: expected a name, got none")
    if spec.shape.count("batch") > 1:  # an attention map has time twice
        raise ValueError(f"shape: expected batch once at most, got {abbreviate(list(spec.shape))}")
    sizes = [size for size in spec.shape if isinstance(size, int)]
    if any(size < 0 for size in sizes):
        raise ValueError(f"shape: expected no negative size, got {abbreviate(list(spec.shape))}")
    if any(size > _LARGEST for size in sizes):
        raise ValueError(f"shape: expected sizes of {_LARGEST} at most, got {abbreviate(list(spec.shape))}")
    least, most = WHOLE_NUMBERS.get(spec.dtype, (-inf, inf))
    if not least <= spec.pad_value <= most:
        raise ValueError(f"pad_value: expected {least} to {most} for {spec.dtype}, got {abbreviate(spec.pad_value)}")
    if spec.vocabulary is not None and spec.vocabulary < 1:
        raise ValueError(f"vocabulary: expected a positive number, got {spec.vocabulary}")


def named_apart(specs: Sequence[TensorSpec]) -> None:
    """Refuse no tensor at all, and two of one name."""
    names = [spec.name for spec in specs]
    if not names:
        raise ValueError("expected one or more, got none")
    if len({*names}) < len(names):
        raise ValueError(f"expected different names, got {abbreviate(names)}")


def valid_carry(value: CarriedValue) -> None:
    """Refuse a carried value whose first dimension is not batch, or that has time."""
    if value.spec.batch_dim != 0 or value.spec.time_dim is not None:
        raise ValueError(f"spec.shape: expected batch, then sizes, got {abbreviate(list(value.spec.shape))}")
    try:
        valid_spec(value.spec)
    except ValueError as error:
        raise ValueError(f"spec.{error}") from None


def _matching(pattern: re.Pattern[str], expected: str) -> Callable[[str], None]:
    def check(text: str) -> None:
        if not pattern.fullmatch(text):
            raise ValueError(f"expected {expected}, got {abbreviate(text)}")

    return check


reference = _matching(re.compile(r"\w+(\.\w+)*:\w+"), "module:name")
module_name = _matching(re.compile(r"\w+(\.\w+)*", re.ASCII), "the name of a module")
distribution_name = _matching(re.compile(r"\w[\w.-]*", re.ASCII), "the name of a distribution")


class RequestLimits(NamedTuple):
    """Bounds of one request."""

    sequences: int = 1024
    """A client with more sends several requests, which share the server fairly with others'."""
    timesteps: int = 1_000_000
    """Sum over all sequences."""
    body_bytes: int = 6_553_500
    """TorchServe's default of `max_request_size`."""
    milliseconds: Optional[float] = None
    """Estimated by the measured costs. None: a tenth of TorchServe's `responseTimeout`."""
    timeout_ms: Optional[float] = None
    """Deadline of a request that names none, from its arrival at the worker on. None: half of `responseTimeout`."""
