"""Ray Serve adapter: archives as an application of replicas on a cluster.

    serve run torchserve_neuron_lstm.hosts.ray:app archive=tagger.mar

Ray Serve's own batching waits for a timer; here each archive of a replica has a `BatchQueue`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator
from typing_extensions import Self

try:
    import ray
    from grpc import StatusCode
    from ray import serve
    from ray.serve.grpc_util import RayServegRPCContext
    from ray.util.metrics import Counter, Histogram
    from starlette.requests import Request
    from starlette.responses import Response
except ImportError as error:
    raise ImportError(f"Ray Serve is missing here ({error}): pip install 'torchserve-neuron-lstm[ray]'") from error

from ..bucketing.shapes import BucketGrid
from ..handlers.metrics import METRICS, BatchMetrics, Metric
from ..inference.reader import ArchiveReader
from .grpc.grpc_server import answer
from .grpc.methods import METHODS
from .rest import not_ready, respond
from .served_archive import ArchiveSettings, ServedArchive
from .shared_sessions import check_shared_sessions

_log = logging.getLogger(__name__)
_BATCHES_WAITING = 4
"""Largest batches that may wait at a replica, beside the one that it computes."""


class _MessageBytes(NamedTuple):
    """A message that is bytes already."""

    content: bytes

    def SerializeToString(self) -> bytes:  # noqa: N802 - as messages have it
        """Return the bytes."""
        return self.content


class Arguments(BaseModel):
    """The arguments of the application, of the command line or of `args` in Ray's config file."""

    model_config = ConfigDict(extra="forbid")

    archive: str | None = None
    """Path of the archive, the same on every node. The model has the name in the archive."""
    archives: dict[str, str] = Field(default_factory=dict)
    """Instead of `archive`: paths of several, by the names under which each replica serves them."""
    threads: PositiveInt = 1
    """Threads of each program call, which are the CPUs that a replica takes from its node."""
    replicas: PositiveInt = 1
    """Replicas at the start, and the least."""
    max_replicas: PositiveInt | None = None
    """The most replicas; None: their number does not change."""

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if (self.archive is None) == (not self.archives):
            raise ValueError("expected either archive, the path of one, or archives, a path for each name")
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ValueError(f"max_replicas: expected {self.replicas} (replicas) or more, got {self.max_replicas}")
        return self


def app(given: Mapping[str, Any]) -> serve.Application:
    """Build the application from its `Arguments`, as Ray reads them.

    Raises `ValueError`: they are not valid.
    Raises `ArchiveError`: there is no such archive, it is damaged, or its sessions are on one node's disk.
    """
    arguments = Arguments.model_validate(given)
    archives = arguments.archives or {ArchiveReader(Path(str(arguments.archive))).model_name(): str(arguments.archive)}
    manifests = {name: ArchiveReader(Path(path)).manifest() for name, path in archives.items()}
    if ray.is_initialized() and _has_several_nodes():
        for name, manifest in manifests.items():
            check_shared_sessions(name, manifest)
    options = _options(arguments, max(manifest.grid.batches[-1] for manifest in manifests.values()))
    return serve.deployment(Replica).options(**options, user_config={"archives": archives}).bind()


def _options(arguments: Arguments, largest: int) -> dict[str, Any]:
    """Return the options of the deployment; `largest` is the number of requests of the largest batch.

    A replica computes one batch while the next one gathers, so it takes at least twice the largest batch. Ray's own
    default of 5 requests would leave most rows of a batch empty.
    """
    options: dict[str, Any] = {
        "name": "archives",
        "max_ongoing_requests": (1 + _BATCHES_WAITING) * largest,
        "ray_actor_options": {"num_cpus": arguments.threads},
    }
    if arguments.max_replicas is None:
        return {**options, "num_replicas": arguments.replicas}
    scaling = {
        "min_replicas": arguments.replicas,
        "max_replicas": arguments.max_replicas,
        "target_ongoing_requests": largest,
    }
    return {**options, "autoscaling_config": scaling}


class Replica:
    """One replica of all models: it is ready once their archives are loaded and warm."""

    def __init__(self) -> None:
        self._served: dict[str, ServedArchive] = {}

    async def reconfigure(self, user_config: dict[str, dict[str, str]]) -> None:
        """Load the archives that are named now, and close the former ones once their requests are answered.

        It returns once the engines and session stores work. Until then the former archives answer, and a replica that
        starts gets no requests.

        Raises `ArchiveError`: an archive is damaged, cannot run on this host, or has its sessions on one node's disk.
        """
        loaded: dict[str, ServedArchive] = {}
        try:
            for name, path in user_config["archives"].items():
                loaded[name] = await asyncio.to_thread(_load, name, path)
            while found := await not_ready(loaded):
                _log.warning("models are not ready: %s", found)
                await asyncio.sleep(1.0)
        except BaseException:
            await _close(loaded.values())
            raise
        former = [*self._served.values()]
        self._served.clear()
        self._served.update(loaded)
        await _close(former)

    def __del__(self) -> None:
        """Release the archives: Ray calls this once a replica that ends has answered its requests."""
        for one in self._served.values():
            one.release()

    async def __call__(self, request: Request) -> Response:
        """Answer one HTTP request."""
        return await respond(request, self._served)

    async def check_health(self) -> None:
        """Try the engines and the session stores; Ray calls this periodically.

        Raises `RuntimeError`: one of them does not work.
        """
        if found := await not_ready(self._served):
            raise RuntimeError(f"models are not ready: {found}")


def _method(name: str) -> Callable[..., Awaitable[_MessageBytes]]:
    """Make a method of the protocol. Ray gives the context to a parameter that is named `grpc_context`."""

    async def method(self: Replica, request: bytes, grpc_context: RayServegRPCContext) -> _MessageBytes:
        found = await answer(name, request, grpc_context.invocation_metadata(), self._served)
        if found.code != "OK":
            grpc_context.set_code(StatusCode[found.code])
            grpc_context.set_details(found.details)
            grpc_context.set_trailing_metadata([*found.trailing])
        return _MessageBytes(found.message)

    method.__name__ = name  # Ray tells it in its log
    return method


for _name in METHODS:
    setattr(Replica, _name, _method(_name))


def _has_several_nodes() -> bool:
    return len([node for node in ray.nodes() if node["Alive"]]) > 1


def _load(name: str, path: str) -> ServedArchive:
    reader = ArchiveReader(Path(path))
    manifest = reader.manifest()
    if _has_several_nodes():
        check_shared_sessions(name, manifest)
    threads = max(1, int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1)))
    # Ray sends at most `max_ongoing_requests`: all of them but one may wait for a batch of one request.
    settings = ArchiveSettings(path, name, threads, most_waiting=None)
    metrics = _RayMetrics(name)
    served = ServedArchive(settings, metrics.report)
    metrics.version = served.version
    return served


async def _close(archives: Iterable[ServedArchive]) -> None:
    for one in archives:
        await one.close()


class _RayMetrics:
    """Reports the batches of one model to Ray."""

    version = ""
    """That of the model, once it is loaded."""

    def __init__(self, model: str) -> None:
        self._name = model
        self._metrics = [(metric, _make(metric)) for metric in METRICS]

    def report(self, batch: BatchMetrics, grid: BucketGrid) -> None:
        """Count one batch."""
        model = {"ModelName": self._name, "ModelVersion": self.version}
        for metric, target in self._metrics:
            for own, value in metric.values(batch, grid).items():
                tags = model | ({metric.dimension: own} if metric.dimension else {})
                if isinstance(target, Histogram):
                    target.observe(value, tags)
                elif value:  # a Counter refuses 0
                    target.inc(value, tags)


def _make(metric: Metric) -> Counter | Histogram:
    keys = ("ModelName", "ModelVersion", *([metric.dimension] if metric.dimension else []))
    if metric.type == "histogram":
        seconds = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]  # as TorchServe gives all histograms
        return Histogram(metric.name, boundaries=seconds, tag_keys=keys)
    return Counter(metric.name, tag_keys=keys)
