"""The `neuron_lstm:` block of model-config.yaml as frozen models, and the JSON Schema of the whole file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ValidationInfo, field_validator
from typing_extensions import Self

from ..bucketing.bucket_lengths import CostOfLength
from ..bucketing.shapes import Axis, BucketGrid, DType, TensorSpec
from ..sessions.settings import normalize_field_name
from .buckets import AutoLengths, Buckets
from .compiler import PartitionerBlock, compiler_option_errors
from .diagnostics import Location
from .fields import (
    ClassPath,
    CompilerArguments,
    EngineName,
    InputName,
    Name,
    Names,
    NonNegativeFloat,
    PadValue,
    PathText,
    PositiveInt,
    Shape,
    Sizes,
)
from .frontend import Frontend
from .streaming import StreamingConfig
from .strict import Strict, as_mapping, format_value, tuple_from_list

BLOCK = "neuron_lstm"

_AXES: tuple[str, ...] = get_args(Axis)
_WHOLE = {
    "bool": (0, 1),
    "uint8": (0, 2**8 - 1),
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
_LARGEST = {
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
    "float32": 3.4028234663852886e38,
    "float64": 1.7976931348623157e308,
}

_BOUNDS = {"bfloat16": 1e-2}
"""The tolerance that is left out, for answers in less than float32. A bfloat16 has 8 bits: 0.4 % of a number."""


class ModelArguments(Strict):
    """What the user's class and its forward() take besides tensors."""

    args: dict[Name, Any] = Field(default_factory=dict)
    """Keyword arguments of the model class."""
    forward: dict[Name, Any] = Field(default_factory=dict)
    """Constant keyword arguments of forward(), the same for every request."""


class InputConfig(Strict):
    """One tensor argument of forward()."""

    dtype: DType
    """The element type that forward() expects, as in int64 for ids or float32 for features."""
    shape: Shape
    """`batch`, `time` and fixed sizes, in forward()'s own order, as in [batch, time] or [time, batch, 12]."""
    pad_value: PadValue = 0
    """What stands on padded timesteps. It never reaches an answer; an embedding must accept it."""

    @field_validator("pad_value")
    @classmethod
    def _castable(cls, value: float, info: ValidationInfo) -> float:
        dtype = info.data.get("dtype")
        if dtype in _WHOLE:
            return _whole(value, dtype)
        if dtype in _LARGEST and not abs(value) <= _LARGEST[dtype]:
            raise ValueError(f"expected a finite {dtype}, got {format_value(value)}")
        return value


def _whole(value: float, dtype: str) -> int:
    least, most = _WHOLE[dtype]
    if not (least <= value <= most and value == int(value)):
        raise ValueError(f"expected a whole number from {least} to {most} for {dtype}, got {format_value(value)}")
    return int(value)


class Tolerance(Strict):
    """How far an answer may lie from eager: |ours - eager| <= atol + rtol x |eager|."""

    atol: NonNegativeFloat = 1e-5
    """The absolute part, in the unit of the answer; left out, 1e-5, or 1e-2 with precision: bfloat16."""
    rtol: NonNegativeFloat = 1e-5
    """The part relative to eager's answer; left out, 1e-5, or 1e-2 with precision: bfloat16."""


class NeuronLstmBlock(Strict):
    """What the plug-in compiles, and how it serves it."""

    model: ModelArguments = ModelArguments()
    """Arguments of the model that are no tensors."""
    inputs: Annotated[
        dict[InputName, InputConfig], Field(min_length=1, json_schema_extra={"additionalProperties": False})
    ]
    """The tensor arguments of forward(), in order, by name; state.0 and state.1 are those of a tuple called state."""
    lengths: Name | None = None
    """The argument of forward() that takes the true lengths [B]; left out if it has none."""
    outputs: Names | None = None
    """Names of the outputs, in order; left out, they are named after what forward() returns."""
    buckets: Buckets
    """The sizes to compile for: `batch` and `length`, each an ascending list; lengths can be chosen for the traffic."""
    backend: EngineName = "auto"
    """The engine: auto (the fastest that verifies), native, inductor, onnxruntime, eager, or one of another package."""
    compiler_workdir: PathText | None = None
    """Where the engine's compiler leaves its intermediate files; left out, they are thrown away."""
    compiler_args: CompilerArguments | None = None
    """Arguments for the engine's compiler, as a text or a list, as in [--target, trn1]."""
    compiler_python: PathText | None = None
    """The Python interpreter in which the engine's compiler is installed, where that is not this one."""
    partitioner_config: PartitionerBlock | None = None
    """Run on the CPU what the engine cannot take; left out, such a model is refused. {} takes all the defaults."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """The least precision that programs may compute in; with bfloat16 whichever is measured faster, float32 or that."""
    tolerance: Annotated[Tolerance, Field(validate_default=True)] = Tolerance()
    """How far an answer may lie from eager; a program that misses it is not packaged."""
    overflow: Literal["reject", "truncate"] = "reject"
    """What becomes of a sequence longer than the largest length: refused with 413, or cut to it."""
    codec: ClassPath | None = None
    """`module:Class` that turns request bodies into inputs and outputs into answers; its file is an extra file."""
    streaming: StreamingConfig | None = None
    """Serve pieces of sequences as they come; left out, a request is a whole sequence. {} takes all the defaults."""
    threads: PositiveInt | None = None
    """Threads per worker; left out, the host's cores are shared out over maxWorkers."""
    placement: Literal["cores"] | None = None
    """cores: each worker keeps to cores of its own; left out, the system places them."""

    @field_validator("tolerance", mode="before")
    @classmethod
    def _of_the_precision(cls, value: Any, info: ValidationInfo) -> Any:
        """What is left out of the tolerance follows from the precision."""
        written = value.model_dump(exclude_unset=True) if isinstance(value, Tolerance) else value
        bound = _BOUNDS.get(info.data.get("precision", "float32"))
        if bound is None or not isinstance(written, Mapping):
            return value
        return {"atol": bound, "rtol": bound, **written}

    @classmethod
    def cross_field_errors(cls, given: Mapping[str, Any]) -> Iterator[tuple[Location, str]]:
        """Inputs, buckets, lengths and constants that do not go together, and what a stream cannot have."""
        yield from _not_of_streams(given)
        yield from compiler_option_errors(given)
        inputs = as_mapping(given.get("inputs"))
        yield from _names_taken_twice(given, inputs)
        shapes = {name: as_mapping(entry).get("shape") for name, entry in inputs.items()}
        if shapes and all(map(_is_shape, shapes.values())):
            yield from _axes_and_buckets(given, shapes)

    @property
    def input_specs(self) -> tuple[TensorSpec, ...]:
        """The inputs in forward()'s order."""
        return tuple(TensorSpec(name, entry.dtype, entry.shape, entry.pad_value) for name, entry in self.inputs.items())


class ServingConfig(NeuronLstmBlock):
    """A whole model-config.yaml: the plug-in's block, the frontend's keys around it, and the histogram it names."""

    frontend: Frontend = Frontend()
    """TorchServe's own keys."""
    histogram: dict[int, int] | None = None
    """How many sequences of each length the histogram's file holds; None where none is named."""
    resolved_lengths: Sizes | None = None
    """The lengths that took the place of `{auto: ...}` for good."""

    @classmethod
    def cross_field_errors(cls, given: Mapping[str, Any]) -> Iterator[tuple[Location, str]]:
        """Those of the block, and a histogram without a sequence that would be served."""
        yield from super().cross_field_errors(given)
        auto = as_mapping(given.get("buckets")).get("length")
        observed: dict[Any, Any] = as_mapping(given.get("histogram"))
        if isinstance(auto, AutoLengths) and all(type(length) is int for length in observed):
            for key, message in auto.histogram_errors(observed, truncate=given.get("overflow") == "truncate"):
                yield ("buckets", "length", key), message

    @property
    def grid(self) -> BucketGrid:
        """The buckets to compile; a dimension that no input has counts 1.

        Until `{auto: ...}` lengths are chosen by measured cost, those that compute the fewest timesteps stand in.
        """
        return BucketGrid(self.buckets.batch or (1,), self.resolved_lengths or self._lengths())

    @property
    def longest(self) -> int:
        """Timesteps of the longest sequence that is to be served."""
        return max(self.buckets.longest or 1, self.grid.lengths[-1])

    @property
    def needs_measurement(self) -> bool:
        """Whether the lengths are yet to be chosen by what they cost: see `with_measured_lengths`."""
        auto = self.buckets.length
        by_cost = isinstance(auto, AutoLengths) and auto.objective == "cost"
        return by_cost and self.histogram is not None and self.resolved_lengths is None

    def with_measured_lengths(self, cost_of_length: CostOfLength) -> Self:
        """The same with the lengths that cost least, by what one sequence costs that is padded to a length.

        Raises:
            ValueError: nothing is to be measured, or a cost is no positive number.
        """
        auto = self.buckets.length
        if not (self.needs_measurement and self.histogram and isinstance(auto, AutoLengths)):
            raise ValueError("the lengths are chosen already: there is nothing to measure")
        return self.with_lengths(auto.lengths_by_cost(self.histogram, cost_of_length, truncate=self._truncates))

    def with_lengths(self, lengths: tuple[int, ...]) -> Self:
        """The same with these lengths, ascending, in place of those that `buckets` asks for."""
        return self.model_copy(update={"resolved_lengths": lengths})

    @property
    def _truncates(self) -> bool:
        return self.overflow == "truncate"

    def _lengths(self) -> tuple[int, ...]:
        written = self.buckets.length
        if isinstance(written, AutoLengths):
            return written.lengths_by_timesteps(self.histogram, truncate=self._truncates)
        return written or (1,)


def _is_shape(value: Any) -> bool:
    return bool(value) and isinstance(value, list | tuple) and all(type(size) is int or size in _AXES for size in value)


def _not_of_streams(given: Mapping[str, Any]) -> Iterator[tuple[Location, str]]:
    if given.get("streaming") is None:
        return
    if isinstance(buckets := given.get("buckets"), Mapping | Buckets) and as_mapping(buckets).get("kernel") is not None:
        yield ("buckets", "kernel"), "expected none: it chooses by a sequence's whole length, which no piece tells"
    if given.get("overflow") == "truncate":
        yield ("overflow",), "expected reject: what is cut from a piece would be missing in the middle of its sequence"
    if as_mapping(given["streaming"]).get("store") == "client" and given.get("codec") is not None:
        yield (
            ("streaming", "store"),
            "expected disk or redis: the session goes to the client in the answer's body, which is the codec's own",
        )
    outputs = tuple_from_list(given.get("outputs"))
    names = [*as_mapping(given.get("inputs")), *(outputs if isinstance(outputs, tuple) else ())]
    tensors = {normalize_field_name(name): name for name in names if isinstance(name, str)}
    for key, name in as_mapping(as_mapping(given["streaming"]).get("fields")).items():
        if isinstance(name, str) and normalize_field_name(name) in tensors:
            own = tensors[normalize_field_name(name)]
            yield ("streaming", "fields", key), f"expected a name of its own, got that of the input or output {own}"


def _names_taken_twice(given: Mapping[str, Any], inputs: Mapping[str, Any]) -> Iterator[tuple[Location, str]]:
    lengths = given.get("lengths")
    if isinstance(lengths, str) and lengths in inputs:
        yield ("lengths",), f"expected an argument of forward() beside the inputs, got {lengths}, which is an input"
    arguments = [lengths, *(str(name).split(".")[0] for name in inputs)]
    for name in as_mapping(as_mapping(given.get("model")).get("forward")):
        if name in arguments:
            yield ("model", "forward", name), "expected a constant argument, but inputs or lengths give it per request"


def _axes_and_buckets(given: Mapping[str, Any], shapes: Mapping[str, Any]) -> Iterator[tuple[Location, str]]:
    with_batch = [name for name, shape in shapes.items() if "batch" in shape]
    if with_batch and len(with_batch) < len(shapes):
        odd = next(name for name in shapes if name not in with_batch)
        yield ("inputs", odd, "shape"), f"expected batch here as in {with_batch[0]}: all inputs have it, or none"
    has_time = any("time" in shape for shape in shapes.values())
    if given.get("lengths") is not None and not has_time:
        yield ("lengths",), "expected no lengths: no input has a time dimension"
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


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a whole model-config.yaml, for editors to check and complete from."""
    keys = {key: _without_null(entry) for key, entry in Frontend.model_json_schema()["properties"].items()}
    block = NeuronLstmBlock.model_json_schema()
    definitions = block.pop("$defs")
    together = {"minWorkers": ["maxWorkers"], "maxWorkers": ["minWorkers"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "model-config.yaml of a model served by neuron_lstm",
        "type": "object",
        "properties": {**keys, BLOCK: {"$ref": f"#/$defs/{block['title']}"}},
        "required": [BLOCK],
        "dependentRequired": together,
        "$defs": {**definitions, block["title"]: block},
    }


def _without_null(entry: dict[str, Any]) -> dict[str, Any]:
    """One of TorchServe's keys: None stands for a key left out, which is not to be written as null.

    >>> _without_null({"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None, "title": "Min"})
    {'title': 'Min', 'type': 'integer'}
    """
    if "anyOf" not in entry:
        return entry
    rest = {word: value for word, value in entry.items() if word not in ("anyOf", "default")}
    (written,) = (kind for kind in entry["anyOf"] if kind != {"type": "null"})
    return {**rest, **written}
