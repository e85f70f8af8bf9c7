"""TorchServe adapter: reads plain values from its context, and writes statuses, headers and metrics to it."""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol

from ..bucketing.shapes import BucketGrid
from .formats.raw_request import RawRequest
from .formats.request import ModelIdentity
from .metrics import METRICS, BatchMetrics, Metric
from .open_service import Host, open_service
from .responses import RawResponse, http_headers
from .service import DEFAULT_RESPONSE_TIMEOUT_MS, Service
from .torchserve_messages import max_response_bytes, read_in_blocks, read_server_properties

_log = logging.getLogger(__name__)


class Context(Protocol):
    """The members of `ts.context.Context` that are used here."""

    model_name: str
    manifest: Any
    model_yaml_config: Any
    metrics: Any
    """The metrics of the server's metrics file: `ts.metrics.metric_cache_abstract.MetricCacheAbstract`."""

    @property
    def system_properties(self) -> Mapping[str, Any]:
        """The worker's properties, `model_dir` among them."""

    def get_all_request_header(self, idx: int) -> Mapping[str, object]:
        """Return the HTTP headers of a row, and its fields' content types."""

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        """Set the response status of one row."""

    def set_response_content_type(self, idx: int, value: str) -> None:
        """Set the content type of one row's response."""

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        """Set a header of one row's response."""


def load(context: Context) -> Service:
    """Load the service of the archive that a worker has unpacked.

    Raises `RuntimeError`: with one line that says what to do. TorchServe reports no other error; it would restart the
    worker repeatedly.
    """
    try:
        host = host_of(context)
    except Exception as error:
        raise RuntimeError(f"TorchServe's context cannot be read: {type(error).__name__}: {error}") from error
    if envelope := _server_properties().get("service_envelope"):
        raise RuntimeError(
            f"config.properties has service_envelope={envelope}, which changes requests and responses: remove it; the "
            "handler reads JSON, V2 and .npy by itself"
        )
    service = open_service(host)
    _spare_each_batch()
    return service


def _spare_each_batch() -> None:
    """Let the worker read messages in blocks, and leave out the line that TorchServe logs for each batch.

    Java wakes for each line, on a core that the model needs. The line of the batch's lengths has the same information.
    """
    messages = sys.modules.get("ts.protocol.otf_message_handler")
    if messages is not None:
        read_in_blocks(messages)
    logging.getLogger().addFilter(lambda record: not str(record.msg).startswith("Backend received inference at"))


def handle(service: Service, rows: Sequence[Mapping[str, object]], context: Context) -> list[bytes]:
    """Return exactly one body for each row, its status and content type set in `context`."""
    requests = [RawRequest(row, context.get_all_request_header(index)) for index, row in enumerate(rows)]
    responses = service.handle(requests)
    for index, response in enumerate(responses):
        _set_status(response, index, context)
        if requests[index].came_over_grpc:
            # TorchServe reads this header from each response to `StreamPredictions`. Without it, Java's thread of the
            # worker fails, the worker is killed, and the batch is lost. Over HTTP the response would become a stream.
            context.set_response_header(index, "ts_stream_next", "false")
    return [response.body for response in responses]


def host_of(context: Context) -> Host:
    """Return what TorchServe decides for a worker."""
    yaml = context.model_yaml_config if isinstance(context.model_yaml_config, Mapping) else {}
    model = ModelIdentity(str(context.model_name), str(context.manifest["model"]["modelVersion"]))
    seconds = yaml.get("responseTimeout")
    label = re.sub(r"[^\w.+-]", "_", model.version) or "none"  # the frontend splits lines of metrics at commas
    reporter = MetricReporter(replace(model, version=label), _declared_units(context.metrics), socket.gethostname())
    return Host(
        Path(context.system_properties["model_dir"]),
        model,
        max_response_bytes(os.environ, _server_properties()),
        seconds * 1000.0 if type(seconds) is int and seconds > 0 else DEFAULT_RESPONSE_TIMEOUT_MS,
        partial(_report, reporter),
        os.environ,
        workers=yaml.get("maxWorkers"),
        device=_device(context.system_properties.get("gpu_id")),
    )


def _server_properties() -> dict[str, str]:
    return read_server_properties(Path("/proc") / str(os.getppid()))


def _device(gpu: object) -> str | None:
    """The GPU of a worker. TorchServe's index is None or negative on a host without GPUs."""
    return f"cuda:{gpu}" if type(gpu) is int and gpu >= 0 else None


def _declared_units(metrics: Any) -> dict[Metric, str]:
    if metrics is None:
        return {}
    from ts.metrics.metric_type_enum import MetricTypes

    return declared_units(lambda metric: metrics.get_metric(metric.name, MetricTypes(metric.type)))


def _report(reporter: MetricReporter, batch: BatchMetrics, grid: BucketGrid) -> None:
    """Write a batch's lengths to the worker's log and its metrics to TorchServe, in one log record.

    TorchServe's Python API writes one record for each value, which costs ten times as much.
    """
    lines = [f"neuron_lstm lengths {batch.lengths_text}"] if batch.sequences else []
    lines += reporter.lines(batch, grid, int(time.time()))
    if lines:
        _log.info("\n".join(lines))


def _set_status(response: RawResponse, index: int, context: Context) -> None:
    """Set status and headers. The reason phrase is a constant: a line break in it would end the worker thread."""
    content_type, headers = http_headers(response)
    context.set_response_content_type(index, content_type)
    for name, value in headers.items():
        context.set_response_header(index, name, value)
    if response.status != 200:
        context.set_response_status(response.status, HTTPStatus(response.status).phrase, index)


MODEL_DIMENSIONS = ("ModelName", "ModelVersion", "Level")
"""The last dimensions of every metric; TorchServe adds the host's name."""


class DeclaredMetric(Protocol):
    """A metric of the server's metrics file: `ts.metrics.caching_metric.CachingMetric`."""

    unit: str
    """The unit, as TorchServe writes it."""
    dimension_names: Sequence[str]
    """The names of the dimensions, in the order of their values."""


def dimensions(metric: Metric) -> tuple[str, ...]:
    """Return the dimensions that the server's metrics file must declare, in their order."""
    return MODEL_DIMENSIONS if metric.dimension is None else (metric.dimension, *MODEL_DIMENSIONS)


def declared_units(find: Callable[[Metric], DeclaredMetric]) -> dict[Metric, str]:
    """Return the unit of each metric that the server's file declares; `find` raises `KeyError` for others.

    A metric that is declared with other dimensions is left out, with a warning: TorchServe matches them by order.
    """
    units: dict[Metric, str] = {}
    for metric in METRICS:
        try:
            declared = find(metric)
        except KeyError:
            continue
        if tuple(declared.dimension_names) == dimensions(metric):
            units[metric] = declared.unit
        else:
            _log.warning(
                "the server's metrics file declares %s with the dimensions %s; it is not sent, because it has %s",
                metric.name,
                list(declared.dimension_names),
                list(dimensions(metric)),
            )
    return units


@dataclass(frozen=True)
class MetricReporter:
    """Writes the metrics of a batch as lines that TorchServe reads."""

    model: ModelIdentity
    units: Mapping[Metric, str]
    """The unit of each declared metric. Others are left out: the server would log and then drop them."""
    host: str

    def lines(self, batch: BatchMetrics, grid: BucketGrid, time: int) -> Iterator[str]:
        """Format one line for each value that is not 0; `time` is in seconds since the epoch.

        >>> declared = {METRICS[0]: "Count"}
        >>> reporter = MetricReporter(ModelIdentity("tagger", "1.0"), declared, "host1")
        >>> list(reporter.lines(BatchMetrics(requests=3), BucketGrid((1,), (8,)), time=1700000000))
        ['[METRICS]neuron_lstm_requests_total.Count:3|#ModelName:tagger,ModelVersion:1.0,Level:Model|#type:COUNTER|#hostname:host1,1700000000']
        """
        model = f"ModelName:{self.model.name},ModelVersion:{self.model.version},Level:Model"
        end = f"#hostname:{self.host},{time}"
        for metric, unit in self.units.items():
            for own, value in metric.values(batch, grid).items():
                if value:
                    named = f"{metric.dimension}:{own},{model}" if metric.dimension else model
                    number = value if isinstance(value, int) else f"{value:.6f}"
                    yield f"[METRICS]{metric.name}.{unit}:{number}|#{named}|#type:{metric.type.upper()}|{end}"
