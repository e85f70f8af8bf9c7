"""Admission of decoded requests: bounds of response and computation, and deadlines.

All of it is decided by the lengths of the sequences, before anything is computed. A deadline is an absolute time in a
header, or a time to live from the arrival on. TorchServe tells no arrival time, so the wait in its queue counts only
for an absolute one.

Estimates can be too low: on a busy host, or for costs that are not measured, such as those of encoding. So a batch has
a share of the time after which its host gives it up, and a large one is run in pieces. Between them the clock decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import NamedTuple

from ..bucketing.cost import CostModel
from ..bucketing.dynamic_chunks import first_true
from ..bucketing.padding import item_bytes, torch_dtype
from ..bucketing.plan import WorkEstimate
from ..bucketing.shapes import TensorSpec, size_at
from ..config.manifest import Manifest
from .formats.raw_request import RawRequest
from .formats.request import InferenceRequest, SequenceInput
from .responses import RequestError, abbreviate, invalid
from .runtime.loader import measured_cost, supported_shapes

_SHARE_OF_TIMEOUT = 0.1
"""Share of `responseTimeout` that the computation of one request may take; `limits.milliseconds` replaces it."""
_SHARE_OF_BATCH = 0.5
"""Share of `responseTimeout` that a batch may take; the rest is for messages, and for one piece that takes longer."""
_SHARE_OF_DECODING = 0.5
"""Share of a batch's time in which its requests are decoded."""
_SHARE_OF_PIECE = 0.1
"""Share of a batch's time for which a piece is made."""
_SEQUENCE_MS = 0.1
"""Guess of what a sequence takes beside its computation."""
_NUMBER_MS = 0.001
"""Guess of what a number of a response takes."""


@dataclass(frozen=True)
class Admission:
    """The bounds of one archive on its host."""

    manifest: Manifest
    max_response_bytes: int
    response_timeout_ms: float
    """The host gives up a batch that takes longer; TorchServe ends its worker, too."""

    @cached_property
    def most_ms(self) -> float:
        """Milliseconds that the computation of one request may take, by its estimate."""
        return min(self.manifest.limits.milliseconds or self.response_timeout_ms * _SHARE_OF_TIMEOUT, self.batch_ms)

    @cached_property
    def batch_ms(self) -> float:
        """Milliseconds that a batch may take, from its arrival on."""
        return self.response_timeout_ms * _SHARE_OF_BATCH

    @property
    def decoding_ms(self) -> float:
        """Milliseconds from a batch's arrival on in which its requests are decoded."""
        return self.batch_ms * _SHARE_OF_DECODING

    @cached_property
    def _piece_rates(self) -> tuple[float, float]:
        """Shares of a piece that a sequence takes, and a timestep, with what they take beside their computation."""
        numbers, more = (sum(_numbers(spec, length) for spec in self.manifest.outputs) for length in (0, 1))
        sequence_ms = self.estimate.at_most(1, 0) + _SEQUENCE_MS + numbers * _NUMBER_MS
        step_ms = self.estimate.at_most(0, 1) + (more - numbers) * _NUMBER_MS
        piece_ms = self.batch_ms * _SHARE_OF_PIECE
        return sequence_ms / piece_ms, step_ms / piece_ms

    def is_one_piece(self, lengths: Sequence[int]) -> bool:
        """Whether sequences of these lengths make no more than a piece of a batch."""
        of_sequence, of_step = self._piece_rates
        return len(lengths) * of_sequence + sum(lengths) * of_step <= 1

    def first_piece(self, requests: Sequence[Sequence[SequenceInput]]) -> int:
        """Return how many of the first requests make a piece of a batch, at least one."""
        if self.is_one_piece([one.length for request in requests for one in request]):  # as in most batches
            return len(requests)
        of_sequence, of_step = self._piece_rates
        share = 0.0
        for count, request in enumerate(requests):
            share += len(request) * of_sequence + sum([one.length for one in request]) * of_step
            if count and share > 1:
                return count
        return len(requests)

    @cached_property
    def estimate(self) -> WorkEstimate:
        """The work of sequences by the measured costs; by a guess where nothing was measured."""
        shapes = supported_shapes(self.manifest)
        cost = measured_cost(self.manifest, self.manifest.kind) or CostModel.proportional(shapes)
        short = self.manifest.short
        alone = (1, 0.0) if short is None else (self.manifest.programs_from, short.milliseconds)
        return WorkEstimate(cost, self.manifest.grid.batches[-1], self.manifest.grid.lengths[-1], *alone)

    @cached_property
    def _safe_length(self) -> int:
        """The longest sequence that exceeds no bound in a request of its own, in any format.

        One that the model's own code answers takes the same time whatever its length, and cannot be sent in parts.
        """
        lengths = range(self.estimate.alone_below, self.manifest.longest + 1)
        outputs = [self._all_outputs(binary=binary) for binary in (False, True)]
        return first_true(lengths, lambda length: any(self._refusal([length], each) for each in outputs)) - 1

    def check(self, request: InferenceRequest) -> None:
        """Refuse a request whose response cannot be sent, or whose computation takes too long.

        Raises `RequestError`: 413.
        """
        sequences = request.sequences
        if len(sequences) == 1 and sequences[0].length <= self._safe_length:
            return
        refusal = self._refusal([one.length for one in sequences], self._wanted(request))
        if refusal is not None:
            raise refusal

    def _wanted(self, request: InferenceRequest) -> Sequence[tuple[int, bool]]:
        """The outputs in the response, and whether as bytes; none if it has the likeliest classes instead."""
        if request.outputs is not None:
            return request.outputs
        sends_outputs = request.npy or request.format.sends_outputs
        return self._all_outputs(binary=request.npy) if sends_outputs else ()

    def _all_outputs(self, *, binary: bool) -> Sequence[tuple[int, bool]]:
        return [(index, binary) for index in range(len(self.manifest.outputs))]

    def _refusal(self, lengths: Sequence[int], wanted: Sequence[tuple[int, bool]]) -> RequestError | None:
        least = least_bytes(self.manifest.outputs, lengths, wanted)
        if least > self.max_response_bytes:
            return too_large(f"{least} bytes or more", self.max_response_bytes)
        if self.estimate.at_most(len(lengths), sum(lengths)) <= self.most_ms:
            return None
        milliseconds = self.estimate.milliseconds(lengths)
        if milliseconds <= self.most_ms:
            return None
        return RequestError(
            "TooMuchWork",
            f"the request would take about {milliseconds:.0f} ms, one request may take at most {self.most_ms:.0f} "
            "(limits.milliseconds): send fewer or shorter sequences in one request",
        )

    @property
    def _longest_ms(self) -> float:
        """Milliseconds that a request has which names no deadline."""
        return min(self.manifest.limits.timeout_ms or self.batch_ms, self.batch_ms)

    def have_time(self, lengths: Sequence[int], elapsed_ms: float) -> bool:
        """Whether sequences of requests without a deadline are done in time, by an upper bound of their work."""
        return self.estimate.at_most(len(lengths), sum(lengths)) <= self._longest_ms - elapsed_ms

    def turn(
        self, request: InferenceRequest, received: RawRequest, elapsed_ms: float, unix_ms: float
    ) -> PendingRequest:
        """Return the time that a request has left, and what it asks for.

        Raises `RequestError`: 400, its deadline cannot be read.
        """
        waited = received.waited_ms
        longest, own = self._longest_ms + waited, request.timeout_ms
        remaining = remaining_ms(received.headers, own, longest, elapsed_ms + waited, unix_ms)
        return PendingRequest(remaining, [one.length for one in request.sequences])

    def late(self, turns: Sequence[PendingRequest]) -> set[int]:
        """Return the indices of the requests that would be answered after their deadline."""
        nearest = min((turn.remaining_ms for turn in turns), default=0.0)
        sequences, timesteps = sum(len(turn.lengths) for turn in turns), sum(sum(turn.lengths) for turn in turns)
        if self.estimate.at_most(sequences, timesteps) <= nearest:
            return set()
        return late(turns, self.estimate.milliseconds)


@dataclass
class Pace:
    """The time of a batch that is decoded, or run, in pieces."""

    clock: Callable[[], float]
    """A function that returns seconds."""
    looked: float
    """The seconds that it returned last."""
    end: float
    """The seconds at which the last piece must be done."""
    longest: float = 0.0
    """Seconds of the longest piece so far."""

    def allows_another(self) -> bool:
        """Whether a piece as long as the longest so far would be done in time."""
        now = self.clock()
        self.longest = max(self.longest, now - self.looked)
        self.looked = now
        return now + self.longest <= self.end


def too_large(size: str, most: int) -> RequestError:
    """Refuse a request whose response is larger than what the server sends."""
    return RequestError(
        "AnswerTooLarge",
        f"the response would have {size}, the server sends at most {most} "
        "(max_response_size): send fewer sequences in one request, or accept .npy",
    )


_DEADLINE_HEADER = "x-request-deadline-ms"
"""Unix time in milliseconds by which the response is wanted."""
_TIMEOUT_HEADER = "x-request-timeout-ms"
"""Milliseconds from the arrival on: at TorchServe's worker, or at a host that counts the wait in its queue."""
_LARGEST_SKEW_MS = 300_000
"""A deadline that is further in the past, or in the future, shows that the clocks differ."""
_NAMES = frozenset((_DEADLINE_HEADER, _TIMEOUT_HEADER))


class PendingRequest(NamedTuple):
    """A request that waits for its computation."""

    remaining_ms: float
    """Milliseconds until its deadline."""
    lengths: Sequence[int]


def remaining_ms(
    headers: Mapping[str, object], own_timeout_ms: float | None, default_ms: float, elapsed_ms: float, unix_ms: float
) -> float:
    """Return the milliseconds that a request has left.

    The time is `unix_ms`, `elapsed_ms` after the arrival. `own_timeout_ms` is the one in its body. The
    shortest counts, and none is longer than `default_ms`.

    >>> remaining_ms({"X-Request-Timeout-Ms": "50"}, None, 1000.0, 1.0, 0.0)
    49.0
    >>> remaining_ms({"x-request-deadline-ms": "1700000000040"}, None, 1000.0, 1.0, 1700000000000.0)
    40.0

    Raises `RequestError`: 400, a header is no number, or the clocks differ.
    """
    remaining = (default_ms if own_timeout_ms is None else min(default_ms, own_timeout_ms)) - elapsed_ms
    for key, value in headers.items():
        if key[:1] in "xX" and (name := key.lower()) in _NAMES:
            number = _number(name, value)
            remaining = min(remaining, _until(number, unix_ms) if name == _DEADLINE_HEADER else number - elapsed_ms)
    return remaining


def names_deadline(headers: Iterable[str]) -> bool:
    """Whether one of these names of headers is that of a deadline.

    >>> names_deadline({"Accept", "Host"}), names_deadline({"Accept", "X-Request-Timeout-Ms"})
    (False, True)
    """
    return not _NAMES.isdisjoint(map(str.lower, headers))


def late(turns: Sequence[PendingRequest], work_ms: Callable[[Sequence[int]], float]) -> set[int]:
    """Return the indices of the requests of a batch that would be answered after their deadline.

    A batch is answered as a whole, so each request waits for the work of all. Those with the nearest deadlines are
    left out until the rest is in time: nothing is computed for a response that comes too late. Of equal deadlines, the
    longest requests are left out first.

    >>> requests = [PendingRequest(50, [2]), PendingRequest(10, [2]), PendingRequest(35, [2])]
    >>> sorted(late(requests, work_ms=lambda lengths: 10.0 * sum(lengths)))
    [1, 2]
    """
    order = sorted(range(len(turns)), key=lambda place: (turns[place].remaining_ms, -sum(turns[place].lengths), -place))

    def in_time(dropped: int) -> bool:
        if dropped == len(order):
            return True
        nearest = turns[order[dropped]].remaining_ms
        return nearest > 0 and work_ms([one for place in order[dropped:] for one in turns[place].lengths]) <= nearest

    dropped = first_true(range(len(order) + 1), in_time)
    return set(order[:dropped])


def too_late(turn: PendingRequest) -> RequestError:
    """Refuse a request whose deadline is past, or comes before its response could."""
    if turn.remaining_ms <= 0:
        said = f"the deadline was {-turn.remaining_ms:.0f} ms ago when the request was read"
    else:
        said = f"the deadline comes in {turn.remaining_ms:.0f} ms, before the requests that were read together are done"
    return RequestError("DeadlineExceeded", f"{said}; nothing was computed for it", retry_after=1.0)


def out_of_time() -> RequestError:
    """Refuse a request for which the requests before it, in its batch, left no time."""
    message = "the requests that were read together with it took all their time; nothing was computed for it"
    return RequestError("DeadlineExceeded", message, retry_after=1.0)


def _number(name: str, value: object) -> float:
    text = value if isinstance(value, str) else ""
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise invalid(f"header {name}: expected whole milliseconds, got {abbreviate(value)}")
    return float(text)


def _until(deadline: float, unix_ms: float) -> float:
    until = deadline - unix_ms
    if abs(until) > _LARGEST_SKEW_MS:
        raise invalid(
            f"header {_DEADLINE_HEADER}: expected Unix milliseconds within {_LARGEST_SKEW_MS // 60_000} minutes of "
            f"this host's clock ({unix_ms:.0f}), got {deadline:.0f}: the clocks differ"
        )
    return until


def least_bytes(outputs: Sequence[TensorSpec], lengths: Sequence[int], wanted: Iterable[tuple[int, bool]]) -> int:
    """Return the fewest bytes of a response for sequences of these lengths.

    `wanted` has the index of each output of the response, and whether its numbers are bytes instead of text.

    >>> tags = TensorSpec("tags", "float32", ("batch", "time", 5))
    >>> least_bytes([tags], [10, 20], [(0, False)]), least_bytes([tags], [10], [(0, True)])
    (300, 200)
    """
    return sum(
        # Of JSON, each number is a digit and a comma at least.
        (item_bytes(torch_dtype(spec)) if binary else 2) * sum(_numbers(spec, length) for length in lengths)
        for spec, binary in [(outputs[index], binary) for index, binary in wanted]
    )


@lru_cache(maxsize=4096)
def _numbers(spec: TensorSpec, length: int) -> int:
    """Return how many numbers an output of one sequence has."""
    return prod(size if isinstance(size, int) else size_at(size, length) for size in spec.item_shape)
