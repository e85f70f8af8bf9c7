"""The keys of model-config.yaml that TorchServe's frontend reads, with the types it wants.

Checked against TorchServe 0.12 (`ModelConfig.java`): a value of another type, a number that is too large for 32 bits or
below its minimum is dropped there with a line in a log, and the server runs on with its default. Here it is refused.
"""
# ruff: noqa: N815 - the keys are TorchServe's

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from .diagnostics import Location
from .strict import Strict, closest_key, tuple_from_list

_LARGEST = 2**31 - 1


def _not_unset(milliseconds: int) -> int:
    if milliseconds == 0:
        raise ValueError("expected 1 or more, got 0: TorchServe takes 0 as not given and waits 100 ms")
    return milliseconds


Count = Annotated[int, Field(ge=1, le=_LARGEST)]
Amount = Annotated[int, Field(ge=0, le=_LARGEST)]
Delay = Annotated[int, Field(ge=0, le=_LARGEST, json_schema_extra={"minimum": 1}), AfterValidator(_not_unset)]


class Frontend(Strict):
    """The frontend's keys; those left out have TorchServe's own defaults, None where the server decides."""

    consequence_note: ClassVar[str] = "; TorchServe would ignore it without a word"

    minWorkers: Count | None = None
    """The smallest number of worker processes; maxWorkers must stand beside it."""
    maxWorkers: Count | None = None
    """The largest number of worker processes; minWorkers must stand beside it."""
    batchSize: Count = 1
    """The most requests handed over at once. It may exceed the largest batch bucket: such batches are split."""
    maxBatchDelay: Delay = 100
    """Milliseconds to wait for a batch to fill, from its first request on."""
    responseTimeout: Count = 120
    """Seconds a batch may take before its worker is killed."""
    startupTimeout: Count = 120
    """Seconds a worker may take to load and warm up."""
    deviceType: Literal["cpu", "gpu"] | None = None
    """The kind of device TorchServe assigns. It knows no others."""
    deviceIds: Annotated[tuple[Amount, ...], BeforeValidator(tuple_from_list)] | None = None
    """The GPUs that workers are spread over."""
    parallelType: Literal["pp", "tp", "pptp", "custom"] | None = None
    """How one model is spread over several devices."""
    parallelLevel: Count = 1
    """The number of devices a model is spread over."""
    torchrun: dict[str, Any] | None = None
    """Parameters of torchrun, for models on several devices."""
    maxRetryTimeoutInSec: Amount = 300
    """Seconds during which a dead worker is started again."""
    clientTimeoutInMills: Amount = 0
    """Milliseconds after which a waiting request is dropped without an answer; 0 for never."""
    jobQueueSize: Count | None = None
    """The most requests that may wait; more are answered with 503."""
    useJobTicket: bool = False
    """Accept a request only while a worker is idle."""
    sequenceMaxIdleMSec: Amount = 0
    """Milliseconds after which an idle sequence ends (sequence batching)."""
    sequenceTimeoutMSec: Amount = 0
    """Milliseconds after which a sequence ends (sequence batching)."""
    maxSequenceJobQueueSize: Count = 1
    """The most requests of one sequence that may wait (sequence batching)."""
    maxNumSequence: Count = 1
    """The most sequences at a time (sequence batching)."""
    continuousBatching: bool = False
    """Keep unfinished requests in the batch."""
    sequenceBatching: bool = False
    """Send all requests of a sequence to one worker."""
    asyncCommunication: bool = False
    """Let the handler answer asynchronously."""
    useVenv: bool = False
    """Install requirements.txt into a virtual environment of the model."""

    @classmethod
    def cross_field_errors(cls, given: Mapping[str, Any]) -> Iterator[tuple[Location, str]]:
        """Nulls, and worker counts that TorchServe replaces by the number of CPUs."""
        for key in given.keys() & cls.model_fields.keys():
            if given[key] is None and cls.model_fields[key].default is None:
                yield (key,), f"expected a value, got nothing: write one or leave the key out{cls.consequence_note}"
        yield from _worker_counts(given.get("minWorkers"), given.get("maxWorkers"))


def _worker_counts(least: Any, most: Any) -> Iterator[tuple[Location, str]]:
    if least is not None and most is None:
        yield ("minWorkers",), "expected maxWorkers beside it: TorchServe ignores the one without the other"
    if most is not None and least is None:
        yield ("maxWorkers",), "expected minWorkers beside it: TorchServe ignores the one without the other"
    if type(least) is int and type(most) is int and least > most:
        yield ("maxWorkers",), f"expected minWorkers ({least}) or more, got {most}: TorchServe would ignore both"


def suggest_key(key: str, *others: str) -> str | None:
    """The key that an unknown top-level key is a slip of, among TorchServe's and `others`; None for another's block.

    >>> suggest_key("batch_size"), suggest_key("minWorker"), suggest_key("micro_batching"), suggest_key("handler")
    ('batchSize', 'minWorkers', None, None)
    """
    return closest_key(key, (*Frontend.model_fields, *others), cutoff=0.8)
