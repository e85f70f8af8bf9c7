"""The keys of model-config.yaml that TorchServe's frontend reads, with their types.

Checked against TorchServe 0.12 (`ModelConfig.java`): TorchServe drops a value of another type, and a number that is too
large for 32 bits or below its minimum: it logs a line and continues with the default. Here such a value is refused.
"""
# ruff: noqa: N815 - the keys are TorchServe's

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from .diagnostics import Location
from .fields import MAX_SIZE, NonNegativeInt, Size
from .strict import Strict, tuple_from_list


def _not_unset(milliseconds: int) -> int:
    if milliseconds == 0:
        raise ValueError("expected 1 or more, got 0: TorchServe takes 0 as not given and waits 100 ms")
    return milliseconds


def _not_served(is_set: object) -> object:
    if is_set is True:
        raise ValueError("leave it out: the handler answers a batch as a whole, and requests would get no answer")
    return is_set


NotServed = Annotated[Literal[False], BeforeValidator(_not_served)]
Delay = Annotated[int, Field(ge=0, le=MAX_SIZE, json_schema_extra={"minimum": 1}), AfterValidator(_not_unset)]


class Frontend(Strict):
    """The frontend's keys; those left out have TorchServe's own defaults, None where the server decides."""

    consequence_note: ClassVar[str] = "; TorchServe would ignore it without an error"

    minWorkers: Size | None = None
    """The smallest number of worker processes; requires maxWorkers as well."""
    maxWorkers: Size | None = None
    """The largest number of worker processes; requires minWorkers as well."""
    batchSize: Size = 1
    """The largest number of requests in a batch. It may exceed the largest batch bucket: such batches are split."""
    maxBatchDelay: Delay = 100
    """Milliseconds to wait for a batch to fill, from its first request on."""
    responseTimeout: Size = 120
    """Seconds a batch may take before its worker is killed."""
    startupTimeout: Size = 120
    """Seconds a worker may take to load and warm up."""
    deviceType: Literal["cpu", "gpu"] | None = None
    """The kind of device that TorchServe assigns; it has no others."""
    deviceIds: Annotated[tuple[NonNegativeInt, ...], BeforeValidator(tuple_from_list)] | None = None
    """The GPUs that workers are distributed over."""
    torchrun: dict[str, Any] | None = None
    """Parameters of torchrun, for models on several devices."""
    maxRetryTimeoutInSec: NonNegativeInt = 300
    """Seconds during which a dead worker is started again."""
    clientTimeoutInMills: NonNegativeInt = 0
    """Milliseconds after which a waiting request is dropped without a response; 0 for never."""
    jobQueueSize: Size | None = None
    """The most requests that may wait; one more is refused with 503."""
    useJobTicket: bool = False
    """Accept a request only while a worker is idle."""
    continuousBatching: NotServed = False
    """Keep unfinished requests in the batch: not served."""
    sequenceBatching: NotServed = False
    """Send all requests of a sequence to one worker: not served. Sessions need no such worker."""
    asyncCommunication: NotServed = False
    """Let the handler answer asynchronously: not served."""
    useVenv: bool = False
    """Install requirements.txt into a virtual environment of the model."""

    @classmethod
    def cross_field_errors(cls, given: Mapping[str, Any]) -> Iterator[tuple[Location, str]]:
        """Yield nulls, and worker counts that TorchServe replaces by the number of CPUs."""
        for key in given.keys() & cls.model_fields.keys():
            if given[key] is None and cls.model_fields[key].default is None:
                yield (key,), f"expected a value, got nothing: write one or leave the key out{cls.consequence_note}"
        least, most = given.get("minWorkers"), given.get("maxWorkers")
        if least is not None and most is None:
            yield ("minWorkers",), "requires maxWorkers as well: TorchServe ignores the one without the other"
        if most is not None and least is None:
            yield ("maxWorkers",), "requires minWorkers as well: TorchServe ignores the one without the other"
        if type(least) is int and type(most) is int and least > most:
            yield ("maxWorkers",), f"expected minWorkers ({least}) or more, got {most}: TorchServe would ignore both"
