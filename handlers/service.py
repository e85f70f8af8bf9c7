"""A batch of requests to a batch of answers. Whatever happens to one request stays with that request."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from math import ceil
from typing import TypeVar, cast

from .batch import UNEXPECTED_ERROR, BatchStats, Model, run_sequences
from .formats.codec import Codec, error_body
from .formats.json_formats import Outputs
from .formats.json_text import to_json
from .formats.request import InferenceRequest, TorchServeRequest
from .formats.v2 import ModelIdentity
from .metrics import BatchMetrics
from .responses import RawResponse, RequestError, internal
from .streaming.service import Model as OnwardModel
from .streaming.service import SessionRequest, SessionService
from .streaming.sessions import Sessions

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

DEFAULT_MAX_RESPONSE_BYTES = 6_553_500
"""Bytes: TorchServe's default `max_response_size`. One body beyond it costs the whole batch its worker."""


def _tell_nobody(counts: BatchMetrics) -> None:
    """What a service does with its counts unless it is given someone to tell."""


@dataclass(frozen=True)
class Service:
    """Answers batches of rows. Rows are decoded one by one, run together, and encoded one by one."""

    model: Model
    codec: Codec
    identity: ModelIdentity
    description: Mapping[str, object] = field(default_factory=dict)
    max_response_bytes: int = DEFAULT_MAX_RESPONSE_BYTES
    report: Callable[[BatchMetrics], None] = _tell_nobody
    """Is told what each batch came to, once its responses are made."""
    clock: Callable[[], float] = time.perf_counter
    """Seconds."""
    sessions: Sessions | None = None
    """Where a streaming model's sessions are; None: every request is a whole sequence."""

    def answer(self, rows: Sequence[TorchServeRequest]) -> list[RawResponse]:
        """One response for each row, in order; never raises for what a row holds."""
        if len(rows) == 1 and rows[0].is_describe_request:
            return [RawResponse(200, to_json(self.description))]
        began = self.clock()
        decoded = [_attempt(self._decode, raw) for raw in rows]
        made, work = self._answered([request for request in decoded if not isinstance(request, RequestError)])
        answered = iter(made)
        outcomes = [request if isinstance(request, RequestError) else next(answered) for request in decoded]
        responses = [
            self._refuse(raw, outcome) if isinstance(outcome, RequestError) else outcome
            for raw, outcome in zip(rows, outcomes, strict=True)
        ]
        rejected = Counter(outcome.kind for outcome in outcomes if isinstance(outcome, RequestError))
        self._tell(
            BatchMetrics(
                len(rows),
                work,
                rejected,
                self.clock() - began,
                replayed=sum(response.replayed for response in responses),
                expired=0 if self.sessions is None else self.sessions.expired(),
            )
        )
        return responses

    @cached_property
    def _streams(self) -> SessionService | None:
        settings = self.model.manifest.streaming
        if settings is None or self.sessions is None:
            return None
        encode = partial(_attempt, self._made)
        state = bytes.fromhex(settings.state)
        model = cast(OnwardModel, self.model)  # the manifest says that it runs in pieces of time
        return SessionService(model, self.codec, self.sessions, state, settings.fields, self.clock, encode)

    def _decode(self, raw: TorchServeRequest) -> InferenceRequest | SessionRequest:
        if raw.is_explain_request:
            raise RequestError(501, "ExplanationsNotSupported", "a compiled model gives no explanations")
        return self.codec.decode(raw) if self._streams is None else self._streams.decode(raw)

    def _answered(
        self, accepted: Sequence[InferenceRequest | SessionRequest]
    ) -> tuple[Sequence[RawResponse | RequestError], BatchStats]:
        if self._streams is not None:
            pieces = [piece for piece in accepted if isinstance(piece, SessionRequest)]
            outcome = _attempt(self._streams.answer, pieces)
            return ([outcome] * len(pieces), BatchStats()) if isinstance(outcome, RequestError) else outcome
        requests = [request for request in accepted if isinstance(request, InferenceRequest)]
        answers, work = run_sequences(self.model, [item for request in requests for item in request.items], self.clock)
        return [*map(self._respond, requests, _by_request(requests, answers))], work

    def _respond(self, request: InferenceRequest, answers: list[Outputs] | RequestError) -> RawResponse | RequestError:
        if isinstance(answers, RequestError):
            return answers
        return _attempt(self._made, partial(self.codec.encode, request, answers))

    def _made(self, encode: Callable[[], tuple[bytes, str]]) -> RawResponse:
        body, content_type = encode()
        if len(body) > self.max_response_bytes:
            raise RequestError(
                413,
                "AnswerTooLarge",
                f"the answer would have {len(body)} bytes, the server sends at most {self.max_response_bytes} "
                "(max_response_size): ask for fewer sequences in one request, or for .npy",
            )
        return RawResponse(200, body, content_type)

    def _tell(self, counts: BatchMetrics) -> None:
        """Nobody's answer depends on who counts it."""
        try:
            self.report(counts)
        except Exception:  # noqa: BLE001 - whatever it was, the answers are there
            _log.exception("a batch was answered and could not be counted")

    def _refuse(self, raw: TorchServeRequest, error: RequestError) -> RawResponse:
        body = error_body(error, raw, self.model.manifest, self.identity)
        later = {} if error.retry_after is None else {"Retry-After": str(ceil(error.retry_after))}
        return RawResponse(error.status, body, headers=later)


def _attempt(step: Callable[..., _T], *given: object) -> _T | RequestError:
    """What a step gives, or why it gives nothing. What nobody foresaw is logged, without the request."""
    try:
        return step(*given)
    except RequestError as error:
        return error
    except Exception:  # noqa: BLE001 - whatever it was, it must not reach the batch-mates
        _log.exception("a request failed unexpectedly")
        return internal(UNEXPECTED_ERROR)


def _by_request(
    requests: Sequence[InferenceRequest], answers: Sequence[Outputs | RequestError]
) -> Iterator[list[Outputs] | RequestError]:
    """The answers to all sequences, in order, to the answers of each request.

    One sequence without an answer leaves its whole request without.
    """
    rest = iter(answers)
    for request in requests:
        own: list[Outputs] = []
        failed: RequestError | None = None
        for answer in islice(rest, len(request.items)):
            if isinstance(answer, RequestError):
                failed = failed or answer
            else:
                own.append(answer)
        yield failed or own
