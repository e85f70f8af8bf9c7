"""Service of an archive: a batch of requests to a batch of responses. No request affects the others."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import ceil
from typing import TYPE_CHECKING, Union

from .admission import Admission, Pace, PendingRequest, names_deadline, out_of_time, too_large, too_late
from .batch import BatchStats, attempt, merge_stats, run_sequences
from .description import readiness
from .formats import Codec
from .formats.json_text import ResponseTooLong, to_json
from .formats.raw_request import RawRequest
from .formats.request import InferenceRequest, Outputs
from .metrics import BatchMetrics
from .responses import DEFAULT_MAX_RESPONSE_BYTES, TRUNCATED, Encoded, Outcome, RawResponse, RequestError
from .runtime.loader import ServedModel
from .streaming.chunk_service import SessionRequest, SessionService, without_successors
from .streaming.state import SessionSource

if TYPE_CHECKING:  # only some archives carry the file
    from .runtime.shadow import ShadowedModel

_log = logging.getLogger(__name__)
AcceptedRequest = Union[InferenceRequest, SessionRequest]
"""A decoded request that is within its bounds."""
_UNTIMED_BYTES = 1 << 20
"""Bytes of bodies that are decoded, in some tens of milliseconds, without a look at the clock."""
_TEXTS = (bytes, bytearray, str)
DEFAULT_RESPONSE_TIMEOUT_MS = 120_000.0
"""The time of a host that names none: TorchServe's default `responseTimeout`."""


@dataclass(frozen=True)
class Service:
    """Service of one loaded archive. Requests are decoded, run together, and encoded separately."""

    model: ServedModel
    codec: Codec
    description: Mapping[str, object] = field(default_factory=dict)
    max_response_bytes: int = DEFAULT_MAX_RESPONSE_BYTES
    report: Callable[[BatchMetrics], None] = lambda batch: None
    """A function that receives the metrics of each batch, once its responses are made."""
    clock: Callable[[], float] = time.perf_counter
    """A function that returns seconds."""
    unix_clock: Callable[[], float] = time.time
    """A function that returns the seconds since 1970, in which clients state deadlines."""
    response_timeout_ms: float = DEFAULT_RESPONSE_TIMEOUT_MS
    """The host gives up a batch that takes longer; TorchServe ends its worker, too."""
    sessions: SessionSource | None = None
    """The sessions of a streaming model; None: every request is a whole sequence."""
    shadow: ShadowedModel | None = None
    """The comparison of a share of the answers."""
    wake: Callable[[], None] = lambda: None
    """A function that wakes the engine's threads, called before a batch is decoded."""

    def handle(self, requests: Sequence[RawRequest]) -> list[RawResponse]:
        """Return one response for each request, in order; no content of a request makes it raise."""
        inferences = [request for request in requests if not request.is_describe_request]
        if len(inferences) == len(requests):
            return self._infer(requests)
        responses = iter(self._infer(inferences) if inferences else [])
        described = self._describe()  # once: a store that hangs takes seconds
        return [described if request.is_describe_request else next(responses) for request in requests]

    def _describe(self) -> RawResponse:
        """Return the description and the readiness; the status is 503 for a model that is not ready."""
        ready = readiness(self.model, self.sessions)
        return RawResponse(200 if ready["ready"] else 503, to_json({**self.description, "readiness": ready}))

    def _infer(self, requests: Sequence[RawRequest]) -> list[RawResponse]:
        started = self.clock()
        self.wake()  # while the requests are decoded
        accepted = self._decode(requests, started)
        decoded = self.clock()
        asked = [
            one.request if isinstance(one, SessionRequest) else one
            for one in accepted
            if not isinstance(one, RequestError)
        ]
        lengths = [one.length for request in asked for one in request.sequences]
        if self._has_time(requests, asked, lengths, (decoded - started) * 1000):  # as in most batches
            timely = accepted
        else:
            timely = self._in_time(requests, accepted, (decoded - started) * 1000)
        if self._session_service is not None:
            timely = without_successors(accepted, timely)
        pace = Pace(self.clock, decoded, started + self.admission.batch_ms / 1000)
        made, stats = self._run([one for one in timely if not isinstance(one, RequestError)], lengths, pace)
        responded = iter(made)
        outcomes = [one if isinstance(one, RequestError) else next(responded) for one in timely]
        responses = [
            self._refuse(request if isinstance(one, RequestError) else one, outcome)
            if isinstance(outcome, RequestError)
            else outcome
            for request, one, outcome in zip(requests, accepted, outcomes)
        ]
        programs_from = self.model.manifest.programs_from
        rejected = [outcome.kind for outcome in outcomes if isinstance(outcome, RequestError)]
        self._report(
            BatchMetrics(
                len(requests),
                stats,
                Counter(rejected) if rejected else {},
                self.clock() - started,
                replayed=sum([response.replayed for response in responses]),
                expired=0 if self.sessions is None else self.sessions.expired(),
                by_model=sum([length < programs_from for length in stats.lengths]),
            )
        )
        return responses

    @cached_property
    def admission(self) -> Admission:
        """The bounds of requests."""
        return Admission(self.model.manifest, self.max_response_bytes, self.response_timeout_ms)

    @cached_property
    def _session_service(self) -> SessionService | None:
        settings = self.model.manifest.streaming
        if settings is None or self.sessions is None:
            return None
        encode = partial(attempt, self._response)
        state_id = bytes.fromhex(settings.state)
        return SessionService(
            self.model, self.codec, self.sessions, state_id, settings.fields, self.clock, encode, settings.client_header
        )

    def _decode(self, requests: Sequence[RawRequest], started: float) -> list[AcceptedRequest | RequestError]:
        """Decode the requests; those for which no time is left are refused unread."""
        if len(requests) == 1:
            return [attempt(self._accept, requests[0])]
        sizes = [*map(_body_bytes, requests)]
        if sum(sizes) < _UNTIMED_BYTES:  # as in most batches
            return [attempt(self._accept, request) for request in requests]
        pace = Pace(self.clock, started, started + self.admission.decoding_ms / 1000)
        accepted: dict[int, AcceptedRequest | RequestError] = {}
        order = list(range(len(requests)))
        if self._session_service is None:  # of a session, no request may be left out before another
            order.sort(key=sizes.__getitem__)  # small requests do not wait for large ones
        for index in order:
            accepted[index] = attempt(self._accept, requests[index]) if pace.allows_another() else out_of_time()
        return [accepted[index] for index in range(len(requests))]

    def _accept(self, request: RawRequest) -> AcceptedRequest:
        """Decode a request, and refuse one whose response or computation would be too large.

        Raises `RequestError`: why the request is refused.
        """
        if request.is_explain_request:
            raise RequestError("ExplanationsNotSupported", "a compiled model does not support explanations")
        session_service = self._session_service
        decoded: AcceptedRequest
        if session_service is None:
            decoded = inference = self.codec.decode(request)
        else:
            decoded = session_service.decode(request)
            inference = decoded.request
        try:
            self.admission.check(inference)
        except RequestError as error:
            self.codec.add_keys(error, inference)
            error.session = decoded.id if isinstance(decoded, SessionRequest) else None
            raise
        return decoded

    def _in_time(
        self, requests: Sequence[RawRequest], accepted: Sequence[AcceptedRequest | RequestError], elapsed_ms: float
    ) -> list[AcceptedRequest | RequestError]:
        """Replace the requests that would be answered after their deadline by their refusals."""
        unix_ms = self.unix_clock() * 1000
        timely = list(accepted)
        turns: dict[int, PendingRequest] = {}
        for place, (request, one) in enumerate(zip(requests, accepted)):
            if not isinstance(one, RequestError):
                turn = attempt(self.admission.turn, _inference(one), request, elapsed_ms, unix_ms)
                if isinstance(turn, RequestError):
                    timely[place] = turn
                else:
                    turns[place] = turn
        places = list(turns)
        for index in self.admission.late(list(turns.values())):
            timely[places[index]] = too_late(turns[places[index]])
        return timely

    def _has_time(
        self,
        requests: Sequence[RawRequest],
        asked: Sequence[InferenceRequest],
        lengths: Sequence[int],
        elapsed_ms: float,
    ) -> bool:
        """Whether no request names a deadline, and all are in time; `lengths` are those of their sequences."""
        names = set().union(*[request.headers for request in requests])  # few, the same in most requests
        if names_deadline(names) or any(one.timeout_ms is not None for one in asked):
            return False
        return self.admission.have_time(lengths, elapsed_ms)

    def _run(
        self, accepted: Sequence[InferenceRequest | SessionRequest], lengths: Sequence[int], pace: Pace
    ) -> tuple[Sequence[Outcome], BatchStats]:
        """Run requests whose sequences have these lengths, or fewer of them."""
        if self._session_service is not None:
            of_sessions = [request for request in accepted if isinstance(request, SessionRequest)]
            outcome = attempt(self._session_service.handle, of_sessions, pace, self.admission.first_piece)
            return ([outcome] * len(of_sessions), BatchStats()) if isinstance(outcome, RequestError) else outcome
        requests = [request for request in accepted if isinstance(request, InferenceRequest)]
        if len(requests) <= 1 or self.admission.is_one_piece(lengths):  # as in most batches
            return self._run_piece(requests, pace)
        return self._run_pieces(requests, pace)

    def _run_pieces(self, requests: Sequence[InferenceRequest], pace: Pace) -> tuple[list[Outcome], BatchStats]:
        """Run requests in pieces, the shortest first, as many as there is time for."""
        timesteps = [sum(one.length for one in request.sequences) for request in requests]
        left = sorted(range(len(requests)), key=timesteps.__getitem__)
        outcomes: dict[int, Outcome] = {}
        parts: list[BatchStats] = []
        while left and (not parts or pace.allows_another()):
            size = self.admission.first_piece([requests[index].sequences for index in left])
            piece, left = left[:size], left[size:]
            made, stats = self._run_piece([requests[index] for index in piece], pace)
            outcomes.update(zip(piece, made))
            parts.append(stats)
        outcomes.update((index, out_of_time()) for index in left)
        return [outcomes[index] for index in range(len(requests))], merge_stats(parts)

    def _run_piece(self, requests: Sequence[InferenceRequest], pace: Pace) -> tuple[list[Outcome], BatchStats]:
        """Run and encode requests together."""
        sequences = [sequence for request in requests for sequence in request.sequences]
        outputs, stats = run_sequences(self.model, sequences, self.clock, pace)
        if self.shadow is not None:
            for place in self.shadow.chosen(len(outputs)):
                if not isinstance(result := outputs[place], RequestError):
                    self.shadow.observe(sequences[place].tensors, sequences[place].length, result)
        return [*map(self._respond, requests, _by_request(requests, outputs))], stats

    def _respond(self, request: InferenceRequest, outputs: list[Outputs] | RequestError) -> Outcome:
        if isinstance(outputs, RequestError):
            return outputs
        response = attempt(self._response, self.codec.encode, request, outputs)
        if isinstance(response, RequestError) or self.model.manifest.overflow != "truncate":
            return response
        return response._replace(headers=TRUNCATED) if any(one.cut for one in request.sequences) else response

    def _response(self, encode: Callable[..., Encoded], *arguments: object) -> RawResponse:
        try:
            body, content_type = encode(*arguments)
        except ResponseTooLong:
            raise too_large("more", self.max_response_bytes) from None
        if len(body) > self.max_response_bytes:
            raise too_large(f"{len(body)} bytes", self.max_response_bytes)
        return RawResponse(200, body, content_type)

    def _report(self, metrics: BatchMetrics) -> None:
        try:
            self.report(metrics)
        except Exception:  # noqa: BLE001 - no response depends on metrics
            _log.exception("the metrics of a batch could not be reported")

    def _refuse(self, refused: RawRequest | AcceptedRequest, error: RequestError) -> RawResponse:
        headers = {} if error.retry_after is None else {"Retry-After": str(ceil(error.retry_after))}
        known = refused if isinstance(refused, RawRequest) else _inference(refused)
        return RawResponse(error.status, self.codec.encode_error(error, known), headers=headers)


def _inference(accepted: AcceptedRequest) -> InferenceRequest:
    return accepted.request if isinstance(accepted, SessionRequest) else accepted


def _body_bytes(request: RawRequest) -> int:
    """Return the bytes of a body. One that the host has parsed, and of unknown length, may have any number."""
    size = 0
    for value in request.row.values():
        if not isinstance(value, _TEXTS):
            return request.content_length or _UNTIMED_BYTES
        size += len(value)
    return size


def _by_request(
    requests: Sequence[InferenceRequest], outputs: Sequence[Outputs | RequestError]
) -> Iterator[list[Outputs] | RequestError]:
    """Group the outputs of all sequences by request. One failed sequence fails its whole request."""
    end = 0
    for request in requests:
        start, end = end, end + len(request.sequences)
        own: list[Outputs] = []
        for result in outputs[start:end]:
            if isinstance(result, RequestError):
                yield result
                break
            own.append(result)
        else:
            yield own
