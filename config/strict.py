"""Strict pydantic models for the YAML: frozen, and every problem is reported at once in plain words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError
from typing_extensions import Self

from .diagnostics import Location, truncate

_WORDED = "worded"
"""The type of an error whose message is complete already."""

_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping of keys",
    "model_type": "a mapping of keys",
    "model_attributes_type": "a mapping of keys",
    "string_too_short": "some text",
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "{ge:g} or more",
    "less_than_equal": "{le} or less",
    "literal_error": "{expected}",
    "too_short": "{min_length} or more entries",
}
"""The expectation behind each of pydantic's error types; names of its context in braces."""


class Strict(BaseModel):
    """A mapping of the YAML: no type is converted, unknown keys are refused, and values are immutable.

    A validator may raise a ValueError; its message is shown as it is.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", use_attribute_docstrings=True)

    consequence_note: ClassVar[str] = ""
    """The effect of a wrong value if it were accepted; ends each message."""

    @classmethod
    def cross_field_errors(cls, given: Mapping[str, Any]) -> Iterator[tuple[Location, str]]:
        """Yield (location, message) for keys that contradict each other. `given` is not validated yet."""
        return iter(())

    @model_validator(mode="wrap")
    @classmethod
    def _every_problem(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(data, cls):
            return data
        problems = [_line(where, message, data) for where, message in cls.cross_field_errors(as_mapping(data))]
        try:
            checked = handler(data)
        except ValidationError as error:
            problems += [
                _line(details["loc"], cls._worded(details), details["input"])
                for details in error.errors()
                if not (details["type"] == "too_short" and details["input"])  # follows from entries that were refused
            ]
            raise ValidationError.from_exception_data(cls.__name__, problems) from None
        if problems:
            raise ValidationError.from_exception_data(cls.__name__, problems)
        return checked

    @classmethod
    def _worded(cls, details: ErrorDetails) -> str:
        if details["type"] == "value_error":
            return str(details["ctx"]["error"])
        if details["type"] == _WORDED:
            return details["msg"]
        if details["type"] == "extra_forbidden":
            known = [field.alias or name for name, field in cls.model_fields.items()]
            near = closest_key(str(details["loc"][-1]), known)
            advice = f"did you mean {near}?" if near else f"expected one of {', '.join(known)}"
            return f"is not a key here: {advice}"
        if details["type"] == "missing":
            tooltip = cls.model_fields[str(details["loc"][-1])].description or ""
            return f"is missing: {' '.join(tooltip.split())}"
        return _expectation(details) + cls.consequence_note


def as_mapping(value: Any) -> dict[str, Any]:
    """Return the keys of a mapping or a model as a dict; an empty one for anything else."""
    return dict(value) if isinstance(value, Mapping | BaseModel) else {}


def tuple_from_list(value: Any) -> Any:
    """Convert a list to a tuple; return anything else as it is, for the model to refuse."""
    return tuple(value) if isinstance(value, list) else value


def closest_key(key: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known key that is most like `key`, or None; case and separators do not count.

    >>> closest_key("max_batch_delay", ["batchSize", "maxBatchDelay"])
    'maxBatchDelay'
    """
    spellings = {_plain(name): name for name in known}
    found = get_close_matches(_plain(key[:100]), spellings, n=1, cutoff=cutoff)
    return spellings[found[0]] if found else None


def _plain(key: str) -> str:
    return key.replace("_", "").replace("-", "").lower()


def format_value(value: Any) -> str:
    """Format a value for a message.

    >>> [format_value(value) for value in (None, True, 2.5, "8", [1], {})]
    ['nothing', 'true', '2.5', "the text '8'", 'a list', 'a mapping']
    """
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"the text {truncate(repr(value))}"
    if isinstance(value, int | float):
        return truncate(repr(value))
    if isinstance(value, list | tuple):
        return "a list"
    return "a mapping" if isinstance(value, Mapping) else f"a {type(value).__name__}"


def _expectation(details: ErrorDetails) -> str:
    expected = _EXPECTED.get(details["type"])
    if expected is None:
        return f"{details['msg']}, got {format_value(details['input'])}"
    got = "none" if details["type"] == "too_short" else format_value(details["input"])
    return f"expected {expected.format(**details.get('ctx', {}))}, got {got}"


def _line(where: Location, message: str, value: Any) -> InitErrorDetails:
    return {"type": PydanticCustomError(_WORDED, "{message}", {"message": message}), "loc": where, "input": value}
