"""Admission of decoded requests: bounds of response and computation, and deadlines.

All of it is decided by the lengths of the sequences, before anything is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..bucketing.bisection import first_true
from ..bucketing.cost import CostModel
from ..bucketing.work import WorkEstimate
from ..config.manifest import Manifest
from .deadline import Turn, late, remaining_ms
from .formats.request import InferenceRequest
from .response_size import OutputSizes
from .responses import RequestError
from .runtime.loader import measured_cost, supported_shapes

_SHARE_OF_TIMEOUT = 0.1
"""Share of `responseTimeout` that the computation of one request may take; `limits.milliseconds` replaces it."""


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
        return self.manifest.limits.milliseconds or self.response_timeout_ms * _SHARE_OF_TIMEOUT

    @cached_property
    def estimate(self) -> WorkEstimate:
        """The work of sequences by the measured costs; by a guess where nothing was measured."""
        shapes = supported_shapes(self.manifest)
        cost = measured_cost(self.manifest, self.manifest.kind) or CostModel.proportional(shapes)
        return WorkEstimate(cost, self.manifest.grid.batches[-1], self.manifest.grid.lengths[-1])

    @cached_property
    def _sizes(self) -> OutputSizes:
        return OutputSizes(self.manifest.outputs)

    @cached_property
    def _safe_length(self) -> int:
        """The longest sequence that exceeds no bound in a request of its own, in any format."""
        lengths = range(1, self.manifest.longest + 1)
        return first_true(lengths, lambda length: not self._is_safe(length)) - 1

    def _is_safe(self, length: int) -> bool:
        return all(self._refusal([length], self._all_outputs(binary=binary)) is None for binary in (False, True))

    def check(self, request: InferenceRequest) -> None:
        """Refuse a request whose response cannot be sent, or whose computation takes too long.

        Raises:
            RequestError: 413.
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
        least = self._sizes.least_bytes(lengths, wanted)
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
        return min(self.manifest.limits.timeout_ms or self.response_timeout_ms, self.response_timeout_ms)

    def have_time(self, requests: Sequence[InferenceRequest], elapsed_ms: float) -> bool:
        """Whether requests without a deadline are answered in time, by an upper bound of their work."""
        lengths = [one.length for request in requests for one in request.sequences]
        return self.estimate.at_most(len(lengths), sum(lengths)) <= self._longest_ms - elapsed_ms

    def turn(self, request: InferenceRequest, headers: Mapping[str, object], elapsed_ms: float, unix_ms: float) -> Turn:
        """Return the time that a request has left, and what it asks for.

        Raises:
            RequestError: 400, its deadline cannot be read.
        """
        remaining = remaining_ms(headers, request.timeout_ms, self._longest_ms, elapsed_ms, unix_ms)
        return Turn(remaining, [one.length for one in request.sequences])

    def late(self, turns: Sequence[Turn]) -> set[int]:
        """Return the indices of the requests that would be answered after their deadline."""
        nearest = min((turn.remaining_ms for turn in turns), default=0.0)
        sequences, timesteps = sum(len(turn.lengths) for turn in turns), sum(sum(turn.lengths) for turn in turns)
        if self.estimate.at_most(sequences, timesteps) <= nearest:
            return set()
        return late(turns, self.estimate.milliseconds)


def too_large(size: str, most: int) -> RequestError:
    """Refuse a request whose response is larger than what the server sends."""
    return RequestError(
        "AnswerTooLarge",
        f"the response would have {size}, the server sends at most {most} "
        "(max_response_size): send fewer sequences in one request, or accept .npy",
    )
