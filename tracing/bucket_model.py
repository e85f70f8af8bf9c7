"""A model traced in several shapes (buckets), with the user's bucket kernel."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import torch

from ..backends.compilation.job import CompileFailure, CompileJob
from ..backends.compilation.pool import compile_all, compile_processes
from ..backends.interface import Backend, CompileError
from ..backends.torch_files import torch_file
from .bucket_kernel import call_factory
from .description import TempDirectory
from .engines import AUTO, select_engines
from .export import ExportedFunction
from .options import TraceOptions, compile_settings
from .state import leading_view
from .trace import describe_trace, export_with_states, program_bucket, program_directory, try_load
from .traced import Traced

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BucketModelConfig:
    """Configuration of a bucket model: the bucket kernel, and the state that the buckets share.

    Attributes:
        bucket_kernel: returns a function of the list of tensors of a call that returns the list of
            tensors for the bucket and the bucket's index as a tensor. Plain or `torch.jit.script`ed.
        shared_state_buffer: the initial values of the states, large enough for every bucket.
        shared_state_buffer_preprocessor: returns a function of the states' shapes by bucket, the buffer and the
            bucket's index that returns views of the buffer in that bucket's shapes. Without it each bucket uses the
            first part of every dimension.
        func_kwargs: arguments of the function that creates the model: for all buckets, or a list with one per bucket.
    """

    bucket_kernel: Callable[[], Any]
    _: KW_ONLY
    shared_state_buffer: Sequence[torch.Tensor] | None = None
    shared_state_buffer_preprocessor: Callable[[], Any] | None = None
    func_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        if self.shared_state_buffer_preprocessor is not None and self.shared_state_buffer is None:
            raise ValueError("shared_state_buffer_preprocessor requires shared_state_buffer as well")

    def arguments(self, buckets: int) -> list[dict[str, Any]]:
        """Return the function's arguments for each bucket.

        >>> BucketModelConfig(list, func_kwargs={"layers": 2}).arguments(2)
        [{'layers': 2}, {'layers': 2}]

        Raises `ValueError`: the list has another length.
        """
        kwargs = self.func_kwargs
        if kwargs is None or isinstance(kwargs, Mapping):
            return [dict(kwargs or {}) for _ in range(buckets)]
        if len(kwargs) != buckets:
            raise ValueError(
                f"func_kwargs is a list of {len(kwargs)}, but there are {buckets} example inputs, one per bucket"
            )
        return [dict(one) for one in kwargs]


def bucket_model_trace(
    func: Callable[..., Any],
    example_inputs: Sequence[Any],
    bucket_config: BucketModelConfig,
    compiler_workdir: str | Path | None = None,
    compiler_args: str | Sequence[str] | None = None,
    *,
    inline_weights_to_neff: bool = True,
    cpu_backend: bool = False,
    backend: str = AUTO,
    compiler_python: str | Path | None = None,
) -> Traced:
    """Trace one model in the shapes of several examples, compiled in as many processes as there are cores.

    Args:
        func: returns the model and its input_output_aliases (see `trace`; an empty dict without state).
        example_inputs: an example for each bucket, in the order of the buckets' indices.
        bucket_config: the bucket kernel, and the state that the buckets share.
        compiler_workdir: directory of the compiler's intermediate files, with a directory for each bucket.
        compiler_args: arguments of the engine's compiler, as a string or a list.
        inline_weights_to_neff: False allows `replace_weights`.
        cpu_backend: compile for a device that is not here; for an engine with such devices it needs `--target`.
        backend: an engine's name, or "auto": the first of inductor, onnxruntime and eager that supports all buckets.
        compiler_python: the Python interpreter of the engine's compiler, if it is not this one.

    Returns:
        A trace whose calls take inputs of every size for which the kernel has a bucket. Weights that are equal in all
        buckets are stored once.

    Raises `LoweringError`, `CompileError`, `ValueError`, `TypeError`: as `trace`; also if the arguments, outputs or
    states of the buckets are inconsistent.
    """
    options = TraceOptions(compiler_workdir, compiler_args, None, inline_weights_to_neff, cpu_backend, compiler_python)
    tried = select_engines(backend, options)
    buckets = _export_buckets(func, example_inputs, bucket_config)
    kernel = call_factory(bucket_config.bucket_kernel)
    make_preprocessor = bucket_config.shared_state_buffer_preprocessor
    preprocessor = None if make_preprocessor is None else call_factory(make_preprocessor)
    initial = _initial(buckets, bucket_config)
    directory = TempDirectory()
    engine = _compile(tried, [bucket.program for bucket in buckets], directory.path, options)
    description, store = describe_trace(engine, buckets, not inline_weights_to_neff)
    return try_load(Traced(description, directory, store, initial, kernel, preprocessor))


def _export_buckets(
    func: Callable[..., Any], examples: Sequence[Any], config: BucketModelConfig
) -> list[ExportedFunction]:
    """Export every bucket's program; they may differ in sizes only."""
    if not examples:
        raise ValueError("example_inputs is empty: pass an example for each bucket")
    buckets = []
    for example, arguments in zip(examples, config.arguments(len(examples)), strict=True):
        result = func(**arguments)
        if not isinstance(result, tuple) or len(result) != 2:
            raise TypeError("func must return a tuple: the model, and its input_output_aliases (or {})")
        model, states = result
        buckets.append(export_with_states(model, example, states))
    first = buckets[0]
    for index, bucket in enumerate(buckets):
        trees = ("inputs", bucket.in_tree, first.in_tree), ("outputs", bucket.out_tree, first.out_tree)
        for what, here, there in trees:
            if here != there:
                raise ValueError(f"the {what} of bucket {index} are {here}, but those of bucket 0 are {there}")
        if bucket.aliases != first.aliases:
            raise ValueError(f"bucket {index} has the aliases {bucket.aliases}, but bucket 0 has {first.aliases}")
    return buckets


def _initial(buckets: Sequence[ExportedFunction], config: BucketModelConfig) -> tuple[torch.Tensor, ...]:
    """Return the initial states: the buffer, or else the values of the examples."""
    known = buckets[0].initial
    shapes = [[list(tensor.shape) for tensor in bucket.initial] for bucket in buckets]
    if config.shared_state_buffer is None:
        if any(own != shapes[0] for own in shapes):
            raise ValueError(
                f"the states of the buckets have different shapes ({shapes}): pass shared_state_buffer, of the largest"
            )
        return known
    buffer = tuple(tensor.detach().clone() for tensor in config.shared_state_buffer)
    if config.shared_state_buffer_preprocessor is not None:
        return buffer
    if len(buffer) != len(known):
        raise ValueError(f"shared_state_buffer holds {len(buffer)} tensors for {len(known)} states")
    for own in shapes:
        for tensor, shape in zip(buffer, own, strict=True):
            leading_view(tensor, shape)
    for tensor, example in zip(buffer, known, strict=True):
        if tensor.dtype != example.dtype:
            raise ValueError(f"shared_state_buffer holds {tensor.dtype}, but the state is {example.dtype}")
    return buffer


def _compile(
    tried: Sequence[Backend], programs: Sequence[torch.export.ExportedProgram], directory: Path, options: TraceOptions
) -> Backend:
    """Compile every program with the first engine that supports them all."""
    with tempfile.TemporaryDirectory(prefix="tracing-") as scratch:
        files = [Path(scratch) / f"{index}.pt2" for index in range(len(programs))]
        for program, file in zip(programs, files, strict=True):
            with torch_file(file) as opened:
                torch.export.save(program, opened)
        errors = []
        for engine in tried:
            done = Path(scratch) / engine.name
            jobs = [
                CompileJob(
                    engine.name,
                    "sequence",
                    None if engine.polymorphic else program_bucket(program),
                    file,
                    done / program_directory(index),
                    compile_settings(engine, options, str(index)),
                )
                for index, (program, file) in enumerate(zip(programs, files, strict=True))
            ]
            with compile_processes(Path(scratch) / f"{engine.name}-compilers") as processes:
                results = compile_all(jobs, processes, lambda result: _log.info("%s", result))
            failed = [result for result in results if isinstance(result, CompileFailure)]
            if not failed:
                (done / "programs").rename(directory / "programs")
                return engine
            errors += [f"bucket {jobs.index(failure.job)}: {failure.reason}" for failure in failed]
        raise CompileError("\n".join(errors))
