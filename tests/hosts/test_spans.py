"""Spans of requests: their trace is the client's, and the steps of a batch are below each of its requests."""

import asyncio
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from rest import JSON, post
from running_command import started
from session_service import make_service, piece
from starlette.types import Message
from torchserve_process import free_ports

from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest
from torchserve_neuron_lstm.handlers.responses import RawResponse
from torchserve_neuron_lstm.hosts.builtin.http_service import Application
from torchserve_neuron_lstm.hosts.served_archive import ArchiveSettings, ServedArchive
from torchserve_neuron_lstm.hosts.spans import request_spans

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
STEPS = ["queue", "decode", "plan", "program", "encode"]


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter
    provider.shutdown()


def ask(archive: Path, *bodies: bytes, flags: str = "01") -> list[int]:
    """The statuses of requests of one trace to the built-in server: the first one alone, and the others at once."""
    headers = [(b"content-type", b"application/json"), (b"traceparent", f"00-{TRACE}-{PARENT}-{flags}".encode())]
    scope = {"type": "http", "method": "POST", "path": "/predictions/sums", "query_string": b"", "headers": headers}

    async def status(application: Application, body: bytes) -> int:
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": body}

        async def send(message: Message) -> None:
            sent.append(message)

        await application(dict(scope), receive, send)
        return int(sent[0]["status"])

    async def run() -> list[int]:
        served = ServedArchive(ArchiveSettings(str(archive), "sums", 1, 100), lambda batch, grid: None)
        application, (first, *others) = Application({"sums": served}, None), bodies
        found = [await status(application, first), *await asyncio.gather(*(status(application, one) for one in others))]
        await served.close()
        return found

    return asyncio.run(run())


def facts(span: ReadableSpan) -> list[object]:
    return sorted((span.attributes or {}).values(), key=str)


def test_a_request_continues_its_trace_and_has_the_steps_of_its_batch(
    archive: Path, exporter: InMemorySpanExporter
) -> None:
    assert ask(archive, b"[1, 2, 3]", b"[1]", b"[4, 5]", b"?") == [200, 200, 200, 400]

    spans = exporter.get_finished_spans()
    for number, request in enumerate(one for one in spans if one.name == "infer"):
        steps = [one for one in spans if one.parent is not None and one.parent.span_id == request.context.span_id]
        assert [one.name for one in steps] == STEPS
        assert {one.context.trace_id for one in (request, *steps)} == {int(TRACE, 16)}
        assert (request.parent and request.parent.span_id) == int(PARENT, 16)
        assert facts(request) == sorted([400 if number == 3 else 200, 3 if number else 1, "2.0", "sums"], key=str)
        assert facts(steps[3]) == ["4x4" if number else "1x4", "sequence"]
        times = [request.start_time or 0, *(time or 0 for one in steps for time in (one.start_time, one.end_time))]
        assert [*times, request.end_time] == sorted([*times, request.end_time or 0])


def test_a_trace_that_is_not_sampled_has_no_span(archive: Path, exporter: InMemorySpanExporter) -> None:
    assert ask(archive, b"[1]", flags="00") == [200]
    assert exporter.get_finished_spans() == ()


def test_sessions_are_loaded_and_saved_within_the_span_of_a_request(exporter: InMemorySpanExporter) -> None:
    spans = request_spans(make_service(), {}, send=False)
    assert spans is not None

    async def answer(request: RawRequest) -> RawResponse:
        return spans.handle([request])[0]._replace(status=500)

    asyncio.run(spans.respond(piece([1, 2], id="a", start="true"), answer))
    *steps, failed = exporter.get_finished_spans()
    assert Counter(one.name for one in steps) == Counter([*STEPS, "load sessions", "save sessions"])
    assert failed.status.status_code is trace.StatusCode.ERROR


def test_an_endpoint_without_the_packages_is_told_and_nothing_is_traced(
    archive: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "torchserve_neuron_lstm.hosts.spans", None)
    assert ask(archive, b"[1]") == [200]
    assert "OTEL_EXPORTER_OTLP_ENDPOINT: no spans are sent" in caplog.text


@pytest.mark.timeout(300)
def test_workers_send_their_last_spans_to_the_endpoint_that_is_named(archive: Path, tmp_path: Path) -> None:
    received: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        (port,) = free_ports(1)
        words = ["serve", str(archive), "--server", "builtin", "--port", str(port), "--drain-seconds", "1"]
        url = f"http://127.0.0.1:{collector.server_address[1]}"
        with started(tmp_path, *words, OTEL_EXPORTER_OTLP_ENDPOINT=url) as command:
            command.wait_until_served()
            assert post(port, "/predictions/sums", b"[1]", JSON).status == 200
            assert command.end(signal.SIGINT) == 0
        collector.shutdown()

    sent = [ExportTraceServiceRequest.FromString(body) for body in received]
    names = [span.name for one in sent for by in one.resource_spans for own in by.scope_spans for span in own.spans]
    assert sorted(names) == sorted(["infer", *STEPS])
