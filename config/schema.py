"""The `neuron_lstm:` block of model-config.yaml as frozen models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints, ValidationInfo, field_validator

from ..bucketing.shapes import BucketGrid, DType, TensorSpec
from .buckets import AutoLengths, Buckets
from .contradictions import contradictions
from .diagnostics import Location
from .engine_choice import AUTO, AutoOptions, Engine, EngineChoice, compiler_option_errors
from .fields import (
    ClassName,
    ClassPath,
    InputName,
    MethodName,
    Missing,
    Name,
    Names,
    NonNegativeFloat,
    PadValue,
    PathText,
    PositiveFloat,
    PositiveInt,
    Shape,
    Size,
    Threads,
    ValueRange,
)
from .forward import Lengths, Mask
from .frontend import Frontend
from .manifest_values import WHOLE_NUMBERS, RequestLimits
from .partitioner import CompilerArguments, PartitionerBlock
from .streaming import StreamingConfig
from .strict import Strict, as_mapping, format_value

_DEFAULTS = RequestLimits()


class LimitsConfig(Strict):
    """Bounds of one request: a larger one is refused with 413 before any work is done for it."""

    sequences: PositiveInt = _DEFAULTS.sequences
    """The largest number of sequences."""
    timesteps: PositiveInt = _DEFAULTS.timesteps
    """The largest number of timesteps, of all sequences together."""
    body_bytes: Size = _DEFAULTS.body_bytes
    """The largest body in bytes; TorchServe has another limit, max_request_size."""
    milliseconds: PositiveFloat | None = None
    """The longest computation, as estimated by the measured costs; left out, a tenth of responseTimeout."""
    timeout_ms: PositiveFloat | None = None
    """The deadline of a request that names none, in milliseconds from its arrival at the worker on.

    What is not begun by then is refused with 504. Left out, it is half of responseTimeout.
    """

    @property
    def limits(self) -> RequestLimits:
        """The limits as serving reads them."""
        return RequestLimits(**self.model_dump())


BLOCK = "neuron_lstm"

_WHOLE = {"bool": (0, 1), **WHOLE_NUMBERS}
_LARGEST = {
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
    "float32": 3.4028234663852886e38,
    "float64": 1.7976931348623157e308,
}

_BOUNDS = {"bfloat16": 1e-2, "float16": 2e-3, "int8": 5e-2}
"""Default tolerances below float32; with int8, weights have 8 bits of their unit's largest one."""


class ModelArguments(Strict):
    """The user's class, its method, and their arguments that are not tensors."""

    class_name: ClassName | None = Field(default=None, alias="class")
    """The name of the model's class; needed if the model's file defines several."""
    method: MethodName | None = None
    """The method to serve instead of forward()."""
    args: dict[Name, Any] = Field(default_factory=dict)
    """Keyword arguments of the model class."""
    forward: dict[InputName, Any] = Field(default_factory=dict)
    """Constant keyword arguments of forward() or of the method, the same for every request.

    `batch.mask` is an element of a dictionary `batch` whose other elements are inputs.
    """
    batched: bool = True
    """Whether forward() takes a batch.

    With false it takes one request, without a batch dimension. `inputs` and the outputs have one nevertheless, in
    front.
    """


class InputConfig(Strict):
    """One tensor argument of forward()."""

    dtype: DType
    """The element type that forward() expects, as in int64 for ids or float32 for features."""
    shape: Shape
    """`batch`, `time` and fixed sizes, in forward()'s own order, as in [batch, time] or [time, batch, 12]."""
    argument: InputName | None = None
    """forward()'s argument, if requests name the input otherwise; left out, it has the input's name."""
    pad_value: PadValue = None
    """The value on padded timesteps; left out, 0 or the value of `range` next to it.

    It never affects an output. The layers must accept it: an embedding, a division.
    """
    range: ValueRange | None = None
    """The least and the largest value of a request, both included, as in [1, 4999] for ids without 0.

    Verification and measurements draw from it. A request outside of it is refused if the program is correct within it
    only: a branch of the model depends on it, or lengths are counted from it.
    """
    missing: Missing = None
    """nan: requests may hold NaN, or null in JSON, for values that are missing; left out, they are refused."""
    packed: bool = False
    """forward() takes a `PackedSequence`: the input is packed by the lengths of each batch."""

    @classmethod
    def cross_field_errors(cls, given: Mapping[str, Any]) -> Iterator[tuple[Location, str]]:
        """Yield a shape that cannot be packed."""
        shape = given.get("shape")
        if given.get("packed") is True and isinstance(shape, list | tuple) and {*shape[:2]} != {"batch", "time"}:
            yield ("packed",), "expected batch and time as the first two dimensions of a packed input"

    @field_validator("range")
    @classmethod
    def _in_dtype(cls, values: tuple[float, float] | None, info: ValidationInfo) -> tuple[float, float] | None:
        dtype = info.data.get("dtype")
        return None if values is None else (_held(values[0], dtype), _held(values[1], dtype))

    @field_validator("missing")
    @classmethod
    def _of_floats(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("dtype") in _WHOLE:
            raise ValueError(f"expected a float dtype, which has NaN, got {info.data['dtype']}: leave it out")
        return value

    @field_validator("pad_value")
    @classmethod
    def _castable(cls, value: float, info: ValidationInfo) -> float:
        return _held(value, info.data.get("dtype"))

    @property
    def padding(self) -> float:
        """The value on padded timesteps."""
        least, most = self.range or (0, 0)
        return max(least, min(0, most)) if self.pad_value is None else self.pad_value


def _held(value: float, dtype: str | None) -> float:
    """Return a value as the dtype holds it; unchanged without a dtype, which was refused."""
    if dtype in _WHOLE:
        least, most = _WHOLE[dtype]
        if not (least <= value <= most and value == int(value)):
            raise ValueError(f"expected a whole number from {least} to {most} for {dtype}, got {format_value(value)}")
        return int(value)
    if dtype in _LARGEST and not abs(value) <= _LARGEST[dtype]:
        raise ValueError(f"expected a finite {dtype}, got {format_value(value)}")
    return value


class Tolerance(Strict):
    """The largest difference of an output from eager mode: |output - eager| <= atol + rtol x |eager|."""

    atol: NonNegativeFloat = 1e-5
    """The absolute part, in the unit of the output; left out, 1e-5 or the default of the precision."""
    rtol: NonNegativeFloat = 1e-5
    """The part relative to eager mode's output; left out, 1e-5 or the default of the precision."""


class ShadowConfig(Strict):
    """Comparison of a lowered model's answers with those of its own code, after they were sent."""

    share: Annotated[float, Field(gt=0, le=1)]
    """The share of the requests that is computed once more, as in 0.001."""
    on_difference: Literal["log", "model"] = "log"
    """model: after the first difference, the model's own code answers. log: it is logged and counted only."""


Lowering = Annotated[
    Literal["auto", "required", "off"],
    BeforeValidator(lambda value: "off" if value is False else value),  # YAML reads off as a boolean
]


class NeuronLstmBlock(Strict):
    """The model that the plug-in compiles, and the way it is served."""

    model: ModelArguments = ModelArguments()
    """The model's class and method, and their arguments that are not tensors."""
    inputs: Annotated[
        dict[InputName, InputConfig], Field(min_length=1, json_schema_extra={"additionalProperties": False})
    ]
    """The tensor arguments of forward(), in order, by name.

    `state.0` and `state.1` are the elements of a tuple `state`, `state.0.1` one of a tuple within it. `batch.ids` is
    an element of a dictionary `batch`.
    """
    lengths: Lengths | None = None
    """The argument of forward() that takes the true lengths [B], or an element as in `batch.1`.

    A list, if several arguments take the same lengths; a mapping with `names` and `type` for a numpy array or a list.
    Left out if it has none.
    """
    mask: Mask | None = None
    """The argument of forward() that takes a mask of the real timesteps, which is made of the lengths.

    Its name, or a mapping with `dtype`, `true_for` and `shape`. Left out if it has none.
    """
    outputs: Names | None = None
    """Names of the outputs, in order; left out, they are named after what forward() returns."""
    buckets: Buckets
    """The sizes to compile for: `batch` and `length`, each an ascending list. Lengths can be chosen for the traffic."""
    backend: Engine = AUTO
    """The engine: auto (the fastest verified one), or a name as in onnxruntime: docs/backends.md.

    A mapping, as in {auto: {try: [native, inductor]}}, names those that auto compares.
    """
    compiler_workdir: PathText | None = None
    """The folder for the compiler's intermediate files; left out, they are deleted."""
    compiler_args: CompilerArguments | None = None
    """Arguments for the backend's compiler, as a text or a list, as in [--target, trn1]."""
    compiler_python: PathText | None = None
    """The Python interpreter in which the backend's compiler is installed, where that is not this one."""
    partitioner_config: PartitionerBlock | None = None
    """Run operators on the CPU that the backend does not support.

    Left out, such a model is refused. {} takes all the defaults.
    """
    lowering: Lowering = "auto"
    """auto: a model that cannot be lowered is served by its own code; required: it is refused; off: its code serves."""
    precision: Literal["float32", "bfloat16", "float16", "int8"] = "float32"
    """The lowest precision that programs may compute in.

    With another one than float32, float32 is used where it is measured faster.
    """
    tolerance: Annotated[Tolerance, Field(validate_default=True)] = Tolerance()
    """The largest difference of an output from eager mode; a program that exceeds it is not packaged."""
    overflow: Literal["reject", "truncate"] = "reject"
    """Treatment of a sequence longer than the largest length: refused with 413, or cut to it."""
    codec: ClassPath | None = None
    """`module:Class` that converts request bodies to inputs, and outputs to responses. Its file is an extra file."""
    limits: LimitsConfig = LimitsConfig()
    """Bounds of one request; left out, all the defaults."""
    streaming: StreamingConfig | None = None
    """Serve sequences in sessions of several requests.

    Left out, a request is a whole sequence. {} takes all the defaults.
    """
    shadow: ShadowConfig | None = None
    """Let the model's own code compute a share of the requests once more, and compare the answers.

    Left out, no answer is compared.
    """
    threads: Threads | None = None
    """Threads per worker; left out, the host's cores divided by maxWorkers."""
    device: Annotated[str, StringConstraints(pattern=r"^(auto|cuda:[0-9]{1,3})$")] | None = None
    """GPU of the engine: cuda:N, or auto (also left out) for the one that the server gives to a worker."""
    placement: Literal["cores"] | None = None
    """cores: each worker is pinned to cores that no other has; left out, the system places the workers."""

    @field_validator("tolerance", mode="before")
    @classmethod
    def _of_the_precision(cls, value: Any, info: ValidationInfo) -> Any:
        # The default of the tolerance depends on the precision.
        written = value.model_dump(exclude_unset=True) if isinstance(value, Tolerance) else value
        bound = _BOUNDS.get(info.data.get("precision", "float32"))
        if bound is None or not isinstance(written, Mapping):
            return value
        return {"atol": bound, "rtol": bound, **written}

    @classmethod
    def cross_field_errors(cls, given: Mapping[str, Any]) -> Iterator[tuple[Location, str]]:
        """Yield keys that contradict each other, and keys that streaming excludes.

        They are inputs, buckets, lengths, mask and constants.
        """
        yield from compiler_option_errors(given)
        yield from contradictions(given)

    @property
    def engine(self) -> str:
        """The name of the backend, or `auto`."""
        return AUTO if isinstance(self.backend, EngineChoice) else self.backend

    @property
    def auto(self) -> AutoOptions:
        """The options of `auto`."""
        return self.backend.auto if isinstance(self.backend, EngineChoice) else AutoOptions()

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of forward() that take the inputs, in their order."""
        return tuple(entry.argument or name for name, entry in self.inputs.items())

    @property
    def input_specs(self) -> tuple[TensorSpec, ...]:
        """The inputs in the order of forward()."""
        return tuple(
            TensorSpec(name, entry.dtype, entry.shape, entry.padding, None, entry.range, entry.missing is not None)
            for name, entry in self.inputs.items()
        )


class ServingConfig(NeuronLstmBlock):
    """A whole model-config.yaml: the plug-in's block, TorchServe's keys, and the named histogram."""

    frontend: Frontend = Frontend()
    """TorchServe's own keys."""
    histogram: dict[int, int] | None = None
    """Number of sequences of each length in the histogram's file; None where no file is named."""

    @classmethod
    def cross_field_errors(cls, given: Mapping[str, Any]) -> Iterator[tuple[Location, str]]:
        """Yield the errors of the block, and a histogram without a sequence that would be served."""
        yield from super().cross_field_errors(given)
        auto = as_mapping(given.get("buckets")).get("length")
        observed: dict[Any, Any] = as_mapping(given.get("histogram"))
        if isinstance(auto, AutoLengths) and all(type(length) is int for length in observed):
            for key, message in auto.histogram_errors(observed, truncate=given.get("overflow") == "truncate"):
                yield ("buckets", "length", key), message

    @property
    def grid(self) -> BucketGrid:
        """The buckets to compile; a dimension that no input has is 1."""
        lengths = self.buckets.length
        if isinstance(lengths, AutoLengths):
            lengths = lengths.lengths_for(self.histogram, truncate=self.overflow == "truncate")
        return BucketGrid(self.buckets.batch or (1,), lengths or (1,))

    @property
    def longest(self) -> int:
        """Timesteps of the longest sequence that is served."""
        return max(self.buckets.longest or 1, self.grid.lengths[-1])
