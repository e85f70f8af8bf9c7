"""Configuration of arguments of forward() that describe a batch: a mask of its real timesteps, and its true lengths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from ..bucketing.shapes import DType
from .fields import InputName
from .strict import Strict, format_value, tuple_from_list


class _OtherForms:
    """JSON Schema of a mapping that has other forms too."""

    def __init__(self, *forms: JsonSchemaValue) -> None:
        self._forms = forms

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema."""
        return {"anyOf": [*self._forms, handler(core_schema)]}


def _with_both_axes(value: Any) -> Any:
    sizes = list(value) if isinstance(value, list | tuple) else []
    if sorted(map(str, sizes)) != ["1"] * (len(sizes) - 2) + ["batch", "time"]:
        expected = "expected batch and time, each once, and sizes of 1, as in [batch, 1, time]"
        raise ValueError(f"{expected}, got {format_value(value)}")
    return tuple(sizes)


class MaskConfig(Strict):
    """The argument of forward() that distinguishes the real timesteps of a batch from its padding."""

    name: InputName
    """The argument, or an element of a tuple as in `batch.1`. Clients do not send it."""
    dtype: DType = "bool"
    """The element type; numbers are 1 and 0."""
    true_for: Literal["timesteps", "padding"] = "timesteps"
    """The positions that are true, or 1."""
    shape: Annotated[tuple[Literal["batch", "time", 1], ...], BeforeValidator(_with_both_axes)] = ("batch", "time")
    """`batch` and `time` in forward()'s own order, with sizes of 1, as in [batch, 1, time]."""


def _by_name(value: Any) -> Any:
    if not isinstance(value, str | Mapping | MaskConfig):
        raise ValueError(f"expected text, got {format_value(value)}")  # noqa: TRY004 - pydantic reports these
    return {"name": value} if isinstance(value, str) else value


Mask = Annotated[MaskConfig, BeforeValidator(_by_name), _OtherForms({"type": "string"})]
"""A mask, or only its name."""


class LengthsArgument(Strict):
    """The arguments of forward() that take the true lengths [B], all the same."""

    names: Annotated[tuple[InputName, ...], Field(min_length=1), BeforeValidator(tuple_from_list)]
    """The arguments, or elements as in `batch.1`; several if forward() takes sequences of one length."""
    type: Literal["tensor", "numpy", "list"] = "tensor"
    """The type that forward() takes: an int64 tensor, a numpy array or a list of numbers."""


def _by_names(value: Any) -> Any:
    if isinstance(value, Mapping | LengthsArgument):
        return value
    if not isinstance(value, str | list | tuple):
        raise ValueError(f"expected text, got {format_value(value)}")  # noqa: TRY004 - pydantic reports these
    return {"names": [value] if isinstance(value, str) else value}


Lengths = Annotated[
    LengthsArgument,
    BeforeValidator(_by_names),
    _OtherForms({"type": "string"}, {"type": "array", "items": {"type": "string"}}),
]
"""The arguments, or only their names."""
