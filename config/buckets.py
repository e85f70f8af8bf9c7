"""`buckets:` of the YAML: the sizes that programs are compiled for, listed or chosen for the traffic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter

from ..bucketing.bucket_lengths import Histogram, clip_histogram, geometric_lengths, optimal_lengths
from .diagnostics import Location
from .fields import BatchSizes, FunctionPath, Size, Sizes
from .strict import Strict, format_value


class AutoLengths(Strict):
    """Lengths that are chosen automatically: the best for a histogram, else geometric ones."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["histogram"]}, {"required": ["longest"]}]})

    auto: Annotated[int, Field(ge=1, le=256)]
    """The largest number of lengths; each is compiled for every batch size."""
    histogram: Annotated[str, Field(min_length=1)] | None = None
    """A file of lengths seen in traffic, relative to this one.

    It is a list, or a TorchServe log with the handler's lines.
    """
    longest: Size | None = None
    """The largest of the lengths; left out, the longest in the histogram. Required without a histogram."""

    @classmethod
    def cross_field_errors(cls, given: Mapping[str, Any]) -> Iterator[tuple[Location, str]]:
        """Yield an error if both the histogram and the longest length are missing."""
        misspelt = given.keys() - cls.model_fields.keys()
        if "auto" in given and given.get("histogram") is None and given.get("longest") is None and not misspelt:
            yield (), "expected histogram: FILE with lengths seen in traffic, or longest: N without one, got neither"

    def histogram_errors(self, observed: Histogram, *, truncate: bool) -> Iterator[tuple[str, str]]:
        """Yield (key, message) for each problem with the lengths in the histogram's file."""
        if self.histogram is not None and not observed:
            yield "histogram", "expected lengths in the file, got none"
        elif observed and self.longest is not None and self.longest < min(observed) and not truncate:
            least = f"{min(observed)} or more, the shortest in the histogram"
            yield "longest", f"expected {least}, got {self.longest}: every sequence would be refused"

    def lengths_for(self, observed: Histogram | None, *, truncate: bool) -> tuple[int, ...]:
        """Choose the lengths with the fewest timesteps to compute; geometric ones without a histogram.

        `truncate`: longer sequences are cut, not refused.
        """
        if observed is not None:
            served = clip_histogram(observed, self.longest or max(observed), truncate=truncate)
            return _fewest_timesteps(tuple(served.items()), self.auto)
        assert self.longest is not None
        return geometric_lengths(self.longest, self.auto)


@lru_cache(maxsize=16)
def _fewest_timesteps(histogram: tuple[tuple[int, int], ...], count: int) -> tuple[int, ...]:
    # Cached, because a configuration is asked for its grid many times.
    return optimal_lengths(dict(histogram), count)


_WRITTEN: TypeAdapter[tuple[int, ...]] = TypeAdapter(Sizes, config=ConfigDict(strict=True))


def _written_or_chosen(value: Any) -> Any:
    # Each form has its own messages, which a union of both would mix.
    if value is None or isinstance(value, AutoLengths):
        return value
    if isinstance(value, Mapping):
        return AutoLengths.model_validate(value)
    if isinstance(value, list | tuple):
        return _WRITTEN.validate_python(value)
    raise ValueError(
        f"expected a list, or {{auto: 8, histogram: FILE}} to have the lengths chosen, got {format_value(value)}"
    )


class Buckets(Strict):
    """The sizes that programs are compiled for: every batch size by every length."""

    batch: BatchSizes | None = None
    """Rows per program, ascending, as in [1, 4, 16, 32]; left out where no input has a batch dimension."""
    length: Annotated[Sizes | AutoLengths | None, BeforeValidator(_written_or_chosen)] = None
    """Timesteps per program, ascending, as in [16, 32, 64, 128].

    Or chosen, as by {auto: 8, histogram: lengths.txt}; left out where no input has a time dimension.
    """
    longest: Size | None = None
    """Timesteps of the longest sequence that is served; left out, the largest length.

    More than the largest length is for a model that runs in chunks of time, or a backend that takes every shape.
    """
    kernel: FunctionPath | None = None
    """The bucket selector, `module:function`, which chooses the length for each sequence.

    Its file is an extra file. Left out, the length that costs least is chosen.
    """

    @classmethod
    def cross_field_errors(cls, given: Mapping[str, Any]) -> Iterator[tuple[Location, str]]:
        """Yield a longest sequence below the largest length, and keys that require lengths."""
        if given.get("kernel") is not None and given.get("length") is None:
            yield ("kernel",), "requires length as well: there are no lengths to choose from"
        longest, lengths = given.get("longest"), given.get("length")
        if type(longest) is int and isinstance(lengths, list | tuple) and lengths and type(lengths[-1]) is int:
            if longest < lengths[-1]:
                yield ("longest",), f"expected at least the largest length, {lengths[-1]}, got {longest}"
        elif longest is not None and lengths is None:
            yield ("longest",), "requires length as well"
