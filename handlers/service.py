"""A batch of requests to a batch of answers. Whatever happens to one request stays with that request."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch

from ..bucketing.plan import Plan, Run
from ..config.manifest import Manifest
from .codec import Codec, error_body
from .errors import RequestError, internal
from .json_text import to_json
from .request import Item, Request
from .rows import JSON, RawRequest
from .v2 import Identity

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_Answer = tuple[torch.Tensor, ...]
_UNEXPECTED = "the server failed on this request; the cause is in its log"

LARGEST_RESPONSE = 6_553_500
"""Bytes: TorchServe's default `max_response_size`. One body beyond it costs the whole batch its worker."""


@dataclass(frozen=True)
class RawResponse:
    """What one row gets."""

    status: int
    body: bytes
    content_type: str = JSON


class Model(Protocol):
    """What a service runs: `handlers.variants.Variants`."""

    @property
    def manifest(self) -> Manifest:
        """Of the archive."""

    def plan(self, lengths: Sequence[int]) -> Plan:
        """The cheapest runs for sequences of these lengths."""

    def answer(
        self, plan: Plan, requests: Sequence[Sequence[torch.Tensor]], lengths: Sequence[int]
    ) -> list[tuple[torch.Tensor, ...]]:
        """The answers to sequences, in their order."""


@dataclass(frozen=True)
class Service:
    """Answers batches of rows. Rows are decoded one by one, run together, and encoded one by one."""

    model: Model
    codec: Codec
    identity: Identity
    description: Mapping[str, object] = field(default_factory=dict)
    largest_response: int = LARGEST_RESPONSE

    def answer(self, rows: Sequence[RawRequest]) -> list[RawResponse]:
        """One response for each row, in order; never raises for what a row holds."""
        if len(rows) == 1 and rows[0].asks_description:
            return [RawResponse(200, to_json(self.description))]
        decoded = [_attempt(lambda raw=raw: self._decode(raw)) for raw in rows]  # type: ignore[misc]
        accepted = [request for request in decoded if isinstance(request, Request)]
        answers = iter(self._answer_requests(accepted))
        return [
            self._respond(raw, request, next(answers)) if isinstance(request, Request) else self._refuse(raw, request)
            for raw, request in zip(rows, decoded, strict=True)
        ]

    def _decode(self, raw: RawRequest) -> Request:
        if raw.asks_explanation:
            raise RequestError(501, "ExplanationsNotSupported", "a compiled model gives no explanations")
        return self.codec.decode(raw)

    def _answer_requests(self, requests: Sequence[Request]) -> list[list[_Answer] | RequestError]:
        """For each request the answers to its sequences, or why one of them has none."""
        answers = iter(self._answer_items([item for request in requests for item in request.items]))
        return [_all_or_error([next(answers) for _ in request.items]) for request in requests]

    def _answer_items(self, items: Sequence[Item]) -> list[_Answer | RequestError]:
        """The answers to sequences, planned together; a run that fails costs only its own sequences theirs."""
        plan = _attempt(lambda: self.model.plan([item.length for item in items]))
        if isinstance(plan, RequestError):
            return [plan] * len(items)
        answers: list[_Answer | RequestError] = [internal(_UNEXPECTED)] * len(items)
        for run in plan.runs:
            own = [items[row] for row in run.rows]
            results = _attempt(lambda run=run, own=own: self._run(run, own))  # type: ignore[misc]
            for place, row in enumerate(run.rows):
                answers[row] = results if isinstance(results, RequestError) else results[place]
        return answers

    def _run(self, run: Run, items: Sequence[Item]) -> list[_Answer]:
        plan = Plan((Run(run.bucket, tuple(range(len(items)))),))
        return self.model.answer(plan, [item.tensors for item in items], [item.length for item in items])

    def _respond(self, raw: RawRequest, request: Request, answers: list[_Answer] | RequestError) -> RawResponse:
        if isinstance(answers, RequestError):
            return self._refuse(raw, answers)
        response = _attempt(lambda: self._encode(request, answers))
        return self._refuse(raw, response) if isinstance(response, RequestError) else response

    def _encode(self, request: Request, answers: list[_Answer]) -> RawResponse:
        body, content_type = self.codec.encode(request, answers)
        if len(body) > self.largest_response:
            raise RequestError(
                413,
                "AnswerTooLarge",
                f"the answer would have {len(body)} bytes, the server sends at most {self.largest_response} "
                "(max_response_size): ask for fewer sequences in one request, or for .npy",
            )
        return RawResponse(200, body, content_type)

    def _refuse(self, raw: RawRequest, error: RequestError) -> RawResponse:
        return RawResponse(error.status, error_body(error, raw, self.model.manifest, self.identity))


def _attempt(step: Callable[[], _T]) -> _T | RequestError:
    """What a step gives, or why it gives nothing. What nobody foresaw is logged, without the request."""
    try:
        return step()
    except RequestError as error:
        return error
    except Exception:  # noqa: BLE001 - whatever it was, it must not reach the batch-mates
        _log.exception("a request failed unexpectedly")
        return internal(_UNEXPECTED)


def _all_or_error(answers: Sequence[_Answer | RequestError]) -> list[_Answer] | RequestError:
    """One sequence without an answer leaves its whole request without."""
    for answer in answers:
        if isinstance(answer, RequestError):
            return answer
    return list(answers)  # type: ignore[arg-type]
