"""The border to TorchServe: its context to plain values, and responses to its statuses and headers."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol

import torch

from ..config.manifest import read_manifest
from .description import describe
from .formats.codec import load_codec
from .formats.request import TorchServeRequest
from .formats.v2 import ModelIdentity
from .metrics import BatchMetrics, DeclaredMetric, Metric, MetricReporter, declared_units
from .responses import RawResponse
from .runtime.host import available_cores, threads_per_worker
from .runtime.loader import load_archive
from .runtime.placement import apply_placement
from .service import DEFAULT_MAX_RESPONSE_BYTES, Service
from .streaming.sessions import open_sessions

_log = logging.getLogger(__name__)


class Context(Protocol):
    """The part of `ts.context.Context` that is used here."""

    model_name: str
    manifest: Any
    model_yaml_config: Any
    metrics: Any
    """What the server's metrics file declares: `ts.metrics.metric_cache_abstract.MetricCacheAbstract`."""

    @property
    def system_properties(self) -> Mapping[str, Any]:
        """`model_dir` among others."""

    def get_all_request_header(self, idx: int) -> Mapping[str, object]:
        """The HTTP headers of a row, and its fields' content types."""

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        """Of one row."""

    def set_response_content_type(self, idx: int, value: str) -> None:
        """Of one row."""

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        """Of one row."""


def load(context: Context) -> Service:
    """The service of the archive that a worker has unpacked.

    Raises:
        RuntimeError: with one line that says what to do. TorchServe reports no other error; it would restart the
            worker again and again.
    """
    directory = Path(context.system_properties["model_dir"])
    try:
        return _load(directory, context)
    except (RuntimeError, MemoryError):
        raise
    except Exception as error:
        raise RuntimeError(f"cannot load the archive in {directory}: {type(error).__name__}: {error}") from error


def handle(service: Service, rows: Sequence[object], context: Context) -> list[bytes]:
    """Exactly one body for each row, with its status and content type set in `context`."""
    requests = [TorchServeRequest(row, context.get_all_request_header(index)) for index, row in enumerate(rows)]
    responses = service.answer(requests)
    for index, response in enumerate(responses):
        _set_status(response, index, context)
    return [response.body for response in responses]


def max_response_bytes(environment: Mapping[str, str]) -> int:
    """The limit of one body in bytes: the server's `TS_MAX_RESPONSE_SIZE` where it is set so, or its default.

    >>> max_response_bytes({"TS_MAX_RESPONSE_SIZE": "1000"}), max_response_bytes({})
    (1000, 6553500)
    """
    given = environment.get("TS_MAX_RESPONSE_SIZE", "")
    return int(given) if given.isascii() and given.isdigit() else DEFAULT_MAX_RESPONSE_BYTES


def _load(directory: Path, context: Context) -> Service:
    manifest, workers = read_manifest(directory), _max_workers(context.model_yaml_config)
    placed = apply_placement(
        manifest, directory, workers, os.environ
    )  # before anything starts threads, or looks for a device
    torch.set_num_threads(placed or manifest.threads or threads_per_worker(available_cores(), workers))
    variants = load_archive(directory, torch.get_num_threads())
    identity = ModelIdentity(str(context.model_name), _version(context.manifest))
    codec = load_codec(variants.manifest, directory, identity)
    programs = sum(map(len, variants.programs.values()))
    _log.info("%d programs on %s, %d threads", programs, variants.manifest.backend, variants.threads)
    reporter = MetricReporter(
        identity.name, variants.manifest.grid, _declared_units(context.metrics), socket.gethostname()
    )
    return Service(
        variants,
        codec,
        identity,
        describe(variants.manifest, variants.threads),
        max_response_bytes(os.environ),
        _telling(reporter),
        sessions=open_sessions(variants.manifest, identity.name, os.environ),
    )


def _declared_units(metrics: Any) -> dict[str, str]:
    """The unit of each of our metrics that the server declares; without a metrics file, of none."""
    if metrics is None:
        return {}
    from ts.metrics.metric_type_enum import MetricTypes

    def find(metric: Metric) -> DeclaredMetric | None:
        try:
            declared: DeclaredMetric = metrics.get_metric(metric.name, MetricTypes(metric.type))
        except KeyError:
            return None
        return declared

    return declared_units(find)


def _telling(reporter: MetricReporter) -> Callable[[BatchMetrics], None]:
    """Tells TorchServe of each batch, and the worker's log of its lengths, all in one record."""

    def tell(counts: BatchMetrics) -> None:
        lines = [f"neuron_lstm lengths {counts.lengths_text}"] if counts.sequences else []
        lines += reporter.lines(counts, int(time.time()))
        if lines:
            _log.info("\n".join(lines))

    return tell


def _set_status(response: RawResponse, index: int, context: Context) -> None:
    """The reason phrase is a constant: a line break in it would cost TorchServe its worker thread."""
    context.set_response_content_type(index, response.content_type)
    for name, value in response.headers.items():
        context.set_response_header(index, name, value)
    if response.status != 200:
        context.set_response_status(response.status, HTTPStatus(response.status).phrase, index)


def _max_workers(yaml: object) -> object:
    return yaml.get("maxWorkers") if isinstance(yaml, Mapping) else None


def _version(manifest: object) -> str:
    model = manifest.get("model") if isinstance(manifest, Mapping) else None
    version = model.get("modelVersion") if isinstance(model, Mapping) else None
    return version if isinstance(version, str) else ""
