"""Service of an archive: a batch of requests to a batch of responses, each request isolated from
the others.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from math import ceil
from typing import TypeVar

from .batch import UNEXPECTED_ERROR, BatchStats, run_sequences
from .formats import Codec
from .formats.json_text import to_json
from .formats.request import InferenceRequest, Outputs, TorchServeRequest
from .metrics import BatchMetrics
from .responses import Encoded, Outcome, RawResponse, RequestError, internal
from .runtime.loader import ServedModel
from .streaming.service import SessionRequest, SessionService
from .streaming.sessions import Sessions

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

DEFAULT_MAX_RESPONSE_BYTES = 6_553_500
"""TorchServe's default `max_response_size`. One larger body costs the whole batch its worker."""


def _discard(metrics: BatchMetrics) -> None:
    """Report to nobody."""


@dataclass(frozen=True)
class Service:
    """Service of one loaded archive.

    Requests are decoded, run together, and encoded each on its own.
    """

    model: ServedModel
    codec: Codec
    description: Mapping[str, object] = field(default_factory=dict)
    max_response_bytes: int = DEFAULT_MAX_RESPONSE_BYTES
    report: Callable[[BatchMetrics], None] = _discard
    """A function that receives the metrics of each batch, once its responses are made."""
    clock: Callable[[], float] = time.perf_counter
    """A function that returns seconds."""
    sessions: Sessions | None = None
    """The sessions of a streaming model; None: every request is a whole sequence."""

    def handle(self, requests: Sequence[TorchServeRequest]) -> list[RawResponse]:
        """Return one response for each request, in order; no content of a request makes it raise."""
        if len(requests) == 1 and requests[0].is_describe_request:
            return [RawResponse(200, to_json(self.description))]
        started = self.clock()
        decoded = [_attempt(self._decode, request) for request in requests]
        made, stats = self._run([one for one in decoded if not isinstance(one, RequestError)])
        responded = iter(made)
        outcomes = [one if isinstance(one, RequestError) else next(responded) for one in decoded]
        responses = [
            self._refuse(request, outcome) if isinstance(outcome, RequestError) else outcome
            for request, outcome in zip(requests, outcomes, strict=True)
        ]
        rejected = Counter(outcome.kind for outcome in outcomes if isinstance(outcome, RequestError))
        self._report(
            BatchMetrics(
                len(requests),
                stats,
                rejected,
                self.clock() - started,
                replayed=sum(response.replayed for response in responses),
                expired=0 if self.sessions is None else self.sessions.expired(),
            )
        )
        return responses

    @cached_property
    def _session_service(self) -> SessionService | None:
        settings = self.model.manifest.streaming
        if settings is None or self.sessions is None:
            return None
        encode = partial(_attempt, self._response)
        state_id = bytes.fromhex(settings.state)
        return SessionService(self.model, self.codec, self.sessions, state_id, settings.fields, self.clock, encode)

    def _decode(self, request: TorchServeRequest) -> InferenceRequest | SessionRequest:
        if request.is_explain_request:
            raise RequestError("ExplanationsNotSupported", "a compiled model gives no explanations")
        return (self.codec if self._session_service is None else self._session_service).decode(request)

    def _run(self, accepted: Sequence[InferenceRequest | SessionRequest]) -> tuple[Sequence[Outcome], BatchStats]:
        if self._session_service is not None:
            of_sessions = [request for request in accepted if isinstance(request, SessionRequest)]
            outcome = _attempt(self._session_service.handle, of_sessions)
            return ([outcome] * len(of_sessions), BatchStats()) if isinstance(outcome, RequestError) else outcome
        requests = [request for request in accepted if isinstance(request, InferenceRequest)]
        sequences = [sequence for request in requests for sequence in request.sequences]
        outputs, stats = run_sequences(self.model, sequences, self.clock)
        return [*map(self._respond, requests, _by_request(requests, outputs))], stats

    def _respond(self, request: InferenceRequest, outputs: list[Outputs] | RequestError) -> Outcome:
        if isinstance(outputs, RequestError):
            return outputs
        return _attempt(self._response, partial(self.codec.encode, request, outputs))

    def _response(self, encode: Callable[[], Encoded]) -> RawResponse:
        body, content_type = encode()
        if len(body) > self.max_response_bytes:
            raise RequestError(
                "AnswerTooLarge",
                f"the response would have {len(body)} bytes, the server sends at most {self.max_response_bytes} "
                "(max_response_size): send fewer sequences in one request, or accept .npy",
            )
        return RawResponse(200, body, content_type)

    def _report(self, metrics: BatchMetrics) -> None:
        try:
            self.report(metrics)
        except Exception:  # noqa: BLE001 - no response depends on metrics
            _log.exception("the metrics of a batch could not be reported")

    def _refuse(self, request: TorchServeRequest, error: RequestError) -> RawResponse:
        headers = {} if error.retry_after is None else {"Retry-After": str(ceil(error.retry_after))}
        return RawResponse(error.status, self.codec.encode_error(error, request), headers=headers)


def _attempt(step: Callable[..., _T], *arguments: object) -> _T | RequestError:
    """Return a step's result or refusal. An unexpected error is logged, without the request."""
    try:
        return step(*arguments)
    except RequestError as error:
        return error
    except Exception:  # noqa: BLE001 - no error may reach the other requests of the batch
        _log.exception("a request failed unexpectedly")
        return internal(UNEXPECTED_ERROR)


def _by_request(
    requests: Sequence[InferenceRequest], outputs: Sequence[Outputs | RequestError]
) -> Iterator[list[Outputs] | RequestError]:
    """Group the outputs of all sequences by request. One failed sequence fails its whole request."""
    rest = iter(outputs)
    for request in requests:
        own: list[Outputs] = []
        failed: RequestError | None = None
        for result in islice(rest, len(request.sequences)):
            if isinstance(result, RequestError):
                failed = failed or result
            else:
                own.append(result)
        yield failed or own
