"""Opening of the service of an unpacked archive for a host: a server, as the service sees it."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..backends.cores import available_cores
from ..bucketing.shapes import BucketGrid
from ..config.manifest import Manifest, read_manifest
from .description import describe
from .formats import load_codec
from .formats.request import ModelIdentity
from .metrics import BatchMetrics
from .runtime.loader import LoadedArchive, device_of, load_archive
from .runtime.placement import apply_placement, threads_per_worker
from .runtime.user_code import Importing, working_directory
from .service import Service

if TYPE_CHECKING:
    from .runtime.shadow import ShadowedModel

_log = logging.getLogger(__name__)


def open_service(host: Host) -> Service:
    """Load the programs of an archive, its codec and its sessions.

    The process serves and does nothing else: the garbage collector leaves out what is loaded.

    Raises `RuntimeError`: with one line that says what to do.
    """
    try:
        service = _open(host)
    except (RuntimeError, MemoryError):
        raise
    except Exception as error:
        raise RuntimeError(f"cannot load the archive in {host.directory}: {type(error).__name__}: {error}") from error
    _collect_seldom()
    return service


def _collect_seldom() -> None:
    """Make garbage collections rare, and exclude the loaded objects from them.

    A collection would visit the 300,000 loaded objects, which takes 0.1 s, and every session in memory.
    """
    gc.unfreeze()  # an archive that was loaded before may be garbage
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)


def _open(host: Host) -> Service:
    manifest = read_manifest(host.directory)
    placed = apply_placement(manifest, host.directory, host.workers, host.environment)  # before anything starts threads
    threads = host.threads or placed or manifest.threads  # `placed`: those of the cores that it is pinned to
    torch.set_num_threads(threads or threads_per_worker(available_cores(), host.workers))

    @contextmanager
    def importing(directory: Path) -> Iterator[None]:
        with host.user_code(), working_directory(directory):
            yield

    archive = load_archive(host.directory, torch.get_num_threads(), device=host.device, importing=importing)
    manifest = archive.manifest
    shadowed = _shadowed(archive, host, importing)
    codec = load_codec(manifest, host.directory, host.model, host.max_response_bytes, importing)
    sessions = None
    if manifest.streaming is not None:  # only archives that serve sessions carry the files for it
        from .streaming.open_sessions import open_sessions

        sessions = open_sessions(manifest, host.model.name, host.environment)
    programs = sum(map(len, archive.programs.values()))
    _warn_of_costs(manifest)
    if manifest.model is not None:
        _log.info("%s answers by its own code, each request alone: %s", manifest.model.name, manifest.model.reason)
    _log.info("%s: programs: %d, threads: %d", manifest.backend, programs, archive.threads)

    def report(batch: BatchMetrics) -> None:
        host.report(batch if shadowed is None else _with_counts(batch, shadowed), manifest.grid)

    return Service(
        shadowed or archive,
        codec,
        describe(manifest, archive.threads),
        host.max_response_bytes,
        report,
        sessions=sessions,
        response_timeout_ms=host.response_timeout_ms,
        shadow=shadowed,
        wake=archive.wake,
    )


def _shadowed(archive: LoadedArchive, host: Host, importing: Importing) -> ShadowedModel | None:
    """Begin to compare answers, if the archive asks for it. Only such archives carry the files for it."""
    settings = archive.manifest.shadow
    if settings is None:
        return None
    from .runtime.shadow import ShadowedModel, load_shadow

    program = load_shadow(host.directory, archive.manifest, settings, importing, host.user_code)
    return ShadowedModel(archive, settings, program.answering(archive.manifest.outputs), program.weights)


def _with_counts(batch: BatchMetrics, shadowed: ShadowedModel) -> BatchMetrics:
    by_model = len(batch.stats.lengths) if shadowed.answers_itself else batch.by_model
    counts = shadowed.take_counts()
    if not counts and by_model == batch.by_model:  # as with most batches
        return batch
    compared, different, dropped = (counts[name] for name in ("compared", "different", "dropped"))
    return batch._replace(by_model=by_model, compared=compared, different=different, dropped=dropped)


def _warn_of_costs(manifest: Manifest) -> None:
    """Log one line if batches are planned by costs of a busy machine, or of another device."""
    measurement, device = manifest.measurement, device_of(manifest)
    measured_on = None if measurement is None else measurement.device
    if device is not None and measured_on != device:
        _log.warning("costs were not measured on this host's %s: run neuron-lstm calibrate", device)
    elif measurement is not None and measurement.was_busy:
        _log.warning("costs were measured on a busy machine: run neuron-lstm calibrate")


Report = Callable[[BatchMetrics, BucketGrid], None]
"""A function that receives the metrics of each batch, and the grid of its model."""


@dataclass(frozen=True)
class Host:
    """A server, as the service of one archive sees it. The adapter of each server makes one."""

    directory: Path
    """The folder of the unpacked archive."""
    model: ModelIdentity
    """Name and version under which the model is served."""
    max_response_bytes: int
    """The largest body of a response that the server sends."""
    response_timeout_ms: float
    """Milliseconds after which the server gives a batch up."""
    report: Report
    environment: MutableMapping[str, str]
    """The variables of the process, which a placement may add to."""
    workers: object = None
    """Workers that share this machine's cores; anything but a positive integer: one for each core."""
    threads: int | None = None
    """Threads of each program call; None: the archive's, or this worker's share of the cores."""
    device: str | None = None
    """The GPU that the server gives to this worker, e.g. cuda:1; None: none."""
    user_code: Callable[[], AbstractContextManager[None]] = nullcontext
    """A function that makes a context in which the archive's own Python files run beside the handling of requests."""
