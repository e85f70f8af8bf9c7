"""Choice of bucket lengths by their cost, which is measured before anything is compiled for them.

An engine that takes every shape is measured in place of the packaged one: it is compiled once, in seconds. The choice
depends on the growth of its milliseconds with the timesteps, at the largest batch size: a busy server mostly runs that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from rich.console import Console

from ...backends.compilation.job import CompileFailure, CompileJob
from ...backends.compilation.pool import compile_all, compile_processes
from ...backends.exported_program import save_program
from ...backends.interface import Backend, LoadedProgram, LoadError
from ...backends.registry import auto_engines, backend_names, get_backend
from ...bucketing.bucket_lengths import cost_per_row, geometric_lengths
from ...bucketing.cost import CostModel
from ...bucketing.padding import padding_tensor
from ...bucketing.shapes import Bucket, BucketGrid
from ...config.buckets import AutoLengths
from ...config.schema import ServingConfig
from ...handlers.runtime.measurement import measure
from ...lowering.program import LoweredModel
from ..errors import PackagingError
from ..progress import ProgressCallback, show_progress
from .candidate_compiler import is_engine_error

_POINTS = 8


def choose_lengths(
    program: LoweredModel, config: ServingConfig, threads: int, scratch: Path, console: Console
) -> ServingConfig:
    """Resolve the bucket lengths: returns the configuration unless `{auto: ...}` chooses them by cost.

    `program` was lowered with provisional lengths; `scratch` is a private directory that does not exist yet; progress
    goes to `console` if it takes more than two seconds.

    Raises `PackagingError`: no engine runs the program.
    """
    auto = config.buckets.length
    if not isinstance(auto, AutoLengths):
        return config
    if auto.objective == "timesteps" or config.histogram is None:
        return config
    with show_progress("choose lengths", console, every_s=2.0) as report:
        cost = measured_costs(program, config, threads, scratch, report)
    price, truncate = cost_per_row(cost, config.grid.batches[-1]), config.overflow == "truncate"
    return config.with_lengths(auto.lengths_by_cost(config.histogram, price, truncate=truncate))


def measured_costs(
    program: LoweredModel, config: ServingConfig, threads: int, scratch: Path, report: ProgressCallback
) -> CostModel:
    """Measure the largest batch size at some lengths, with the first engine that runs the program.

    Raises `PackagingError`: no engine runs the program.
    """
    scratch.mkdir()
    file = scratch / "program.pt2"
    save_program(program.exported, file)
    reasons = []
    for engine in _engines(config):
        run = _compile_and_load(engine, program, file, threads, scratch / engine.name)
        if isinstance(run, str):
            reasons.append(run)
            continue
        try:
            return _measure(run, engine, program, buckets_to_time(config.grid), report)
        except Exception as error:
            if not is_engine_error(error):
                raise
            reasons.append(f"{engine.name} cannot run the program that it compiled: {error}")
    raise PackagingError(
        "no engine here runs the model at every length, so the lengths cannot be chosen by cost; write objective: "
        "timesteps under buckets.length\n" + "\n".join(reasons)
    )


def buckets_to_time(grid: BucketGrid) -> tuple[Bucket, ...]:
    """Choose the buckets to time: the largest batch size, from the grid's shortest length to its longest.

    >>> buckets_to_time(BucketGrid(batches=(1, 8), lengths=(10, 200)))[:3]
    (Bucket(batch=8, length=10), Bucket(batch=8, length=12), Bucket(batch=8, length=24))
    """
    shortest, longest = grid.lengths[0], grid.lengths[-1]
    lengths = sorted({shortest, *(length for length in geometric_lengths(longest, _POINTS) if length > shortest)})
    return tuple(Bucket(grid.batches[-1], length) for length in lengths)


def _engines(config: ServingConfig) -> Iterator[Backend]:
    """The requested engine if one of its programs serves every shape, then the engines for this choice.

    These are also needed for an engine that may leave operators to the CPU.
    """
    asked = get_backend(config.engine) if config.engine in backend_names() else None
    if asked is not None and asked.polymorphic:
        yield asked
        if config.partitioner_config is None:
            return
    others = [name for name in auto_engines("choose_lengths") if name != config.engine]
    yield from (engine for name in others if not (engine := get_backend(name)).unavailable())


def _compile_and_load(
    engine: Backend, program: LoweredModel, file: Path, threads: int, directory: Path
) -> LoadedProgram | str:
    """Return the loaded program, or the reason why there is none."""
    job = CompileJob(engine.name, "sequence", None, file, directory / "program")
    with compile_processes(directory / "compiler") as processes:
        (result,) = compile_all([job], processes, lambda _: None)
    if isinstance(result, CompileFailure):
        return f"{job}: {result.reason}"
    weights = {**program.exported.state_dict, **program.constants}
    try:
        return engine.load(job.directory, weights, engine.host(), threads)
    except LoadError as error:
        return str(error)


def _measure(
    run: LoadedProgram, engine: Backend, program: LoweredModel, buckets: tuple[Bucket, ...], report: ProgressCallback
) -> CostModel:
    names = {f"{engine.name} {bucket.batch} x {bucket.length}": bucket for bucket in buckets}
    turns = measure({name: _call(run, program, bucket) for name, bucket in names.items()}, report=report)
    return CostModel({names[name]: min(times) for name, times in turns.items()}).monotonic()


def _call(run: LoadedProgram, program: LoweredModel, bucket: Bucket) -> Callable[[], object]:
    """One call with every row at the bucket's full length."""
    tensors = [padding_tensor(spec, bucket.length, bucket.batch) for spec in program.inputs]
    if program.takes_lengths:
        tensors.append(torch.full((bucket.batch,), bucket.length))
    return lambda: run(tensors)
