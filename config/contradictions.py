"""Keys of the `neuron_lstm:` block that contradict each other, although each is valid alone.

The keys are read as they are written: some may be models already, and others may be wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..sessions.settings import normalize_field_name
from .buckets import Buckets
from .diagnostics import Location
from .fields import AXES
from .strict import as_mapping, tuple_from_list


def contradictions(given: Mapping[str, Any]) -> Iterator[tuple[Location, str]]:
    """Yield the errors of names, axes and buckets, and of keys that streaming excludes."""
    yield from _not_of_streams(given)
    if given.get("shadow") is not None and given.get("lowering") in ("off", False):
        yield ("shadow",), "expected none: with `lowering: off` the model's own code is all that answers"
    inputs = as_mapping(given.get("inputs"))
    arguments = {name: as_mapping(entry).get("argument") or name for name, entry in inputs.items()}
    yield from _arguments_taken_twice(inputs, arguments)
    yield from _names_taken_twice(given, [*arguments.values()])
    shapes = {name: as_mapping(entry).get("shape") for name, entry in inputs.items()}
    if shapes and all(map(_is_shape, shapes.values())):
        yield from _axes_and_buckets(given, shapes)


def _is_shape(value: Any) -> bool:
    return bool(value) and isinstance(value, list | tuple) and all(type(size) is int or size in AXES for size in value)


def _not_of_streams(given: Mapping[str, Any]) -> Iterator[tuple[Location, str]]:
    if given.get("streaming") is None:
        return
    if as_mapping(given.get("buckets")).get("kernel") is not None:
        yield (
            ("buckets", "kernel"),
            "expected none: it chooses by the length of the whole sequence, which is not known in a session",
        )
    if given.get("lowering") in ("off", False):
        yield ("lowering",), "expected auto or required: only a lowered model serves sessions"
    if given.get("shadow") is not None:
        yield ("shadow",), "expected none: the model's own code answers whole sequences, not the chunks of a session"
    if given.get("overflow") == "truncate":
        yield (
            ("overflow",),
            "expected reject: timesteps cut from a request would be missing in the middle of the session's sequence",
        )
    if as_mapping(given["streaming"]).get("store") == "client" and given.get("codec") is not None:
        yield (
            ("streaming", "store"),
            "expected disk or redis: the response body, which would hold the session token, has the codec's own format",
        )
    outputs = tuple_from_list(given.get("outputs"))
    names = [*as_mapping(given.get("inputs")), *(outputs if isinstance(outputs, tuple) else ())]
    tensors = {normalize_field_name(name): name for name in names if isinstance(name, str)}
    for key, name in as_mapping(as_mapping(given["streaming"]).get("fields")).items():
        if isinstance(name, str) and normalize_field_name(name) in tensors:
            own = tensors[normalize_field_name(name)]
            yield ("streaming", "fields", key), f"expected another name than that of the input or output {own}"


def _arguments_taken_twice(inputs: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[tuple[Location, str]]:
    for name, argument in arguments.items():
        others = [other for other in arguments if other != name and _overlap(str(arguments[other]), str(argument))]
        if others and as_mapping(inputs[name]).get("argument"):
            message = f"expected an argument of its own, got {argument}, which the input {others[0]} takes too"
            yield ("inputs", name, "argument"), message


def _names_taken_twice(given: Mapping[str, Any], inputs: Sequence[Any]) -> Iterator[tuple[Location, str]]:
    written = as_mapping(given.get("lengths")).get("names", given.get("lengths"))
    lengths = [name for name in (written if isinstance(written, list | tuple) else [written]) if isinstance(name, str)]
    for name in lengths:
        if name in inputs:
            yield ("lengths",), f"expected an argument of forward() that is not an input, got the input {name}"
    mask = as_mapping(given.get("mask")).get("name", given.get("mask"))
    if isinstance(mask, str) and (mask in inputs or mask in lengths):
        yield ("mask",), f"expected another argument of forward() than {mask}, which is named above"
    names = [str(name) for name in (*lengths, mask, *inputs)]
    for name in as_mapping(as_mapping(given.get("model")).get("forward")):
        if any(_overlap(str(name), other) for other in names):
            message = "expected a constant argument, but inputs, lengths or mask give it per request"
            yield ("model", "forward", name), message


def _overlap(name: str, other: str) -> bool:
    """Whether two names are of one argument, or one of them is an element of the other."""
    shorter, longer = sorted((name.split("."), other.split(".")), key=len)
    return longer[: len(shorter)] == shorter


def _axes_and_buckets(given: Mapping[str, Any], shapes: Mapping[str, Any]) -> Iterator[tuple[Location, str]]:
    with_batch = [name for name, shape in shapes.items() if "batch" in shape]
    if with_batch and len(with_batch) < len(shapes):
        odd = next(name for name in shapes if name not in with_batch)
        yield ("inputs", odd, "shape"), f"expected batch here as in {with_batch[0]}: all inputs have it, or none"
    unbatched = as_mapping(given.get("model")).get("batched") is False
    for name, shape in shapes.items() if unbatched else ():
        if shape[0] != "batch":
            yield ("inputs", name, "shape"), "expected batch in front of what forward() takes: model.batched is false"
    has_time = any("time" in shape for shape in shapes.values())
    if given.get("lengths") is not None and not has_time:
        yield ("lengths",), "expected no lengths: no input has a time dimension"
    if given.get("mask") is not None and not (has_time and with_batch):
        yield ("mask",), "expected no mask: no input has a batch and a time dimension"
    if isinstance(given.get("buckets"), Mapping | Buckets):
        buckets = as_mapping(given["buckets"])
        yield from _bucket_for_axis(buckets, "batch", "batch", needed=bool(with_batch))
        yield from _bucket_for_axis(buckets, "length", "time", needed=has_time)


def _bucket_for_axis(
    buckets: Mapping[str, Any], key: str, axis: str, *, needed: bool
) -> Iterator[tuple[Location, str]]:
    present = buckets.get(key) is not None
    if needed and not present:
        yield ("buckets", key), f"is missing: an input has a {axis} dimension, so its sizes must be given, ascending"
    if present and not needed:
        yield ("buckets", key), f"expected none: no input has a {axis} dimension"
