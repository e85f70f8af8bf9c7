"""Spans of OpenTelemetry: one for each request of an archive, with the steps of its batch below it.

Where they are received, functions that keep the time stand in the place of methods of the archive's own objects. So
nothing is timed elsewhere.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ..bucketing.shapes import Bucket, ProgramRole
from ..handlers.formats.raw_request import RawRequest
from ..handlers.responses import RawResponse
from ..handlers.runtime.loader import LoadedArchive
from ..handlers.service import Service

Facts = Mapping[str, str | int]
_MOST_STEPS = 100
"""Steps of a batch that become spans: a long sequence may have a thousand program calls."""
_W3C = TraceContextTextMapPropagator()
logging.getLogger("opentelemetry.trace").setLevel(logging.ERROR)  # its warnings repeat headers of requests


def request_spans(service: Service, facts: Facts, *, send: bool) -> RequestSpans | None:
    """Return the spans of a service's requests, with attributes; None: nothing receives them.

    With `send`, a process without a provider gets one that sends spans to the endpoint which its environment names.
    Raises `ImportError`: the packages for that are missing.
    """
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):  # none was set
        if not send:
            return None
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        provider = TracerProvider()  # it reads the other variables of the environment
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(provider)
    return RequestSpans(trace.get_tracer("torchserve_neuron_lstm"), service, facts)


class _Step(NamedTuple):
    name: str
    begun: float  # seconds of `perf_counter`
    ended: float
    facts: Facts | None = None


class RequestSpans:
    """The spans of the requests to one service, which computes one batch at a time."""

    def __init__(self, tracer: trace.Tracer, service: Service, facts: Facts) -> None:
        self._tracer, self._service, self._facts = tracer, service, facts
        self._open: dict[int, tuple[trace.Span, float]] = {}
        """Spans and their beginnings, by the identity of a request's row, which its copies share."""
        self._steps: list[_Step] = []
        self._time(service.codec, "decode", "decode")
        self._time(service.codec, "encode", "encode")
        self._time(service.model, "plan", "plan")
        if isinstance(service.model, LoadedArchive) and service.model.manifest.model is None:
            self._time(service.model, "run", "program", _call)
            if service.model.manifest.kind == "chunk" and service.model.chain is not None:
                self._time(service.model, "chain", "program", _chain)
        else:
            self._time(service.model, "run_plan", "program")
        for method in () if service.sessions is None else ("load", "save"):
            self._time(service.sessions, method, f"{method} sessions")

    async def respond(
        self, request: RawRequest, respond: Callable[[RawRequest], Awaitable[RawResponse]]
    ) -> RawResponse:
        """Respond to a request within a span: of the trace that the server is in, or that the request names."""
        is_inside = trace.get_current_span().is_recording()
        parent = None if is_inside else _W3C.extract(request.headers)
        span = self._tracer.start_span("infer", parent, trace.SpanKind.SERVER, self._facts)
        if not span.is_recording():
            return await respond(request)
        key = id(request.row)
        self._open[key] = span, time.perf_counter()
        with trace.use_span(span, end_on_exit=True):
            try:
                response = await respond(request)
            finally:
                self._open.pop(key, None)
            span.set_attribute("http.response.status_code", response.status)
            if response.status >= 500:
                span.set_status(trace.StatusCode.ERROR)
            return response

    def handle(self, requests: Sequence[RawRequest]) -> Sequence[RawResponse]:
        """Respond to a batch, and add its steps to the spans of its requests."""
        self._steps = []
        begun = time.perf_counter()
        responses = self._service.handle(requests)
        epoch = time.time_ns() - time.perf_counter_ns()
        for span, came in filter(None, [self._open.get(id(request.row)) for request in requests]):
            span.set_attribute("neuron_lstm.batch_requests", len(requests))
            context = trace.set_span_in_context(span)
            for name, start, end, facts in (_Step("queue", came, begun), *self._steps):
                child = self._tracer.start_span(name, context, attributes=facts, start_time=epoch + int(start * 1e9))
                child.end(epoch + int(end * 1e9))
        return responses

    def _time(self, owner: object, method: str, name: str, facts: Callable[..., Facts] | None = None) -> None:
        """Let each call of a method add a step. One without `facts` prolongs that of the request before it."""
        function = getattr(owner, method)

        def timed(*given: Any, **named: Any) -> Any:
            begun = time.perf_counter()
            try:
                return function(*given, **named)
            finally:
                step, steps = _Step(name, begun, time.perf_counter(), facts and facts(*given)), self._steps
                if facts is None and steps and steps[-1].name == name:
                    steps[-1] = steps[-1]._replace(ended=step.ended)
                elif len(steps) < _MOST_STEPS:
                    steps.append(step)

        vars(owner)[method] = timed


def _call(role: ProgramRole, bucket: Bucket, *_: object) -> Facts:
    return {"neuron_lstm.program": role, "neuron_lstm.bucket": f"{bucket.batch}x{bucket.length}"}


def _chain(buckets: Sequence[Bucket], *_: object) -> Facts:
    return {**_call("chunk", buckets[0]), "neuron_lstm.calls": len(buckets)}
