"""From a function and an example to a traced function."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..backends.interface import Backend, CompileError
from ..backends.partitioning.partition import PartitionError
from ..backends.signature import TensorType, dtype_name, signature_of
from ..bucketing.shapes import Bucket
from ..config.partitioner import PartitionerConfig
from ..lowering.errors import LoweringError
from .description import TempDirectory, TraceDescription, TracedProgram
from .engines import AUTO, combined_error, preserve_torch_threads, select_engines
from .export import ExportedFunction, Function, eval_mode, export_function, flatten_example
from .options import TraceOptions, compile_settings
from .row_batches import not_batchable_reason
from .state import StateBuffer, resolve_aliases
from .traced import Traced, state_shapes
from .weights import dedupe_weights


def trace(
    func: Function,
    example_inputs: Any,
    *args: Any,
    input_output_aliases: Mapping[Any, int] | None = None,
    compiler_workdir: str | Path | None = None,
    compiler_args: str | Sequence[str] | None = None,
    partitioner_config: PartitionerConfig | None = None,
    inline_weights_to_neff: bool = True,
    cpu_backend: bool = False,
    backend: str = AUTO,
    compiler_python: str | Path | None = None,
) -> Traced:
    """Compile `func` for the shapes and dtypes of an example.

    >>> traced = trace(lambda x, y: 2 * x + y, (torch.ones(3), torch.ones(3)), backend="eager")
    >>> traced(torch.ones(3), torch.arange(3.0))
    tensor([2., 3., 4.])
    >>> traced(torch.ones(4), torch.ones(4))
    Traceback (most recent call last):
    torchserve_neuron_lstm.backends.signature.WrongInput: input 'x' is float32 [4], but the program was ...

    Args:
        func: an `nn.Module`, which is traced in eval mode, or a function over tensors.
        example_inputs: a tensor, or a tuple of tensors that may be nested; one argument each.
        args: options by position, deprecated; in the order of the keywords up to `cpu_backend`.
        input_output_aliases: for each state (the place of an example's tensor, that tensor, or a buffer of the module)
            the place of the output that is its next value. States are kept by the trace: calls neither give them nor
            get them.
        compiler_workdir: where the engine's compiler leaves its intermediate files.
        compiler_args: its arguments, as a text or a list.
        partitioner_config: a `PartitionerConfig`: operators that the engine does not take run on the CPU.
        inline_weights_to_neff: False where `replace_weights` is to be possible.
        cpu_backend: compile for a device that is not here; for an engine with such devices it needs `--target`.
        backend: an engine's name, or "auto": the first of inductor, onnxruntime and eager that takes the function.
        compiler_python: the interpreter in which the engine's compiler lives, where that is not this one.

    Raises:
        LoweringError: the function cannot be a program of fixed shapes; says why, and where.
        CompileError: the engine does not take it, or is not here.
        ValueError, TypeError: the options or the example do not fit; PartitionError is one, where the partitioner's
            options cannot be kept.
    """
    options = TraceOptions(
        input_output_aliases,
        compiler_workdir,
        compiler_args,
        partitioner_config,
        inline_weights_to_neff,
        cpu_backend,
        compiler_python,
    ).with_positional(args)
    own = [leaf for leaf in pytree.tree_leaves(example_inputs) if isinstance(leaf, torch.Tensor)]
    held, aliases = resolve_aliases(options.input_output_aliases, func, own)
    exported = export_function(func, example_inputs, held)
    directory = TempDirectory()
    engine = _compile(
        select_engines(backend, options), exported.program, directory.path / program_directory(0), options
    )
    description, store = describe_trace(
        engine, [exported], aliases, separate_weights=not options.inline_weights_to_neff
    )
    if aliases:
        initial = initial_state(func, own, held, aliases)
        return try_load(Traced(description, directory, store, StateBuffer(initial, state_shapes(description))))
    tensors, in_tree = flatten_example(example_inputs)
    with eval_mode(func):
        description = replace(description, no_batch=not_batchable_reason(func, tensors, in_tree))
    return try_load(Traced(description, directory, store))


def try_load(traced: Traced) -> Traced:
    """Loaded, where this host can: what was compiled for a device elsewhere can be saved for it."""
    if traced.engine.unavailable() is None:
        traced.reload()
    return traced


def _compile(
    tried: Sequence[Backend], program: torch.export.ExportedProgram, directory: Path, options: TraceOptions
) -> Backend:
    """Compile for the first engine that takes the program, in this process."""
    errors = []
    for engine in tried:
        directory.mkdir(parents=True)
        bucket = None if engine.polymorphic else program_bucket(program)
        try:
            with preserve_torch_threads():
                engine.compile(program, bucket, directory, compile_settings(engine, options))
        except CompileError as error:
            if isinstance(error.__cause__, PartitionError):
                raise error.__cause__ from None
            errors.append(error)
            shutil.rmtree(directory)
        else:
            return engine
    raise combined_error(errors)


def program_directory(bucket: int) -> str:
    """Where a program lies in the directory of a trace."""
    return f"programs/{bucket}"


def program_bucket(program: torch.export.ExportedProgram) -> Bucket:
    """What an engine calls the one shape of a program: the first two sizes of its first input, or 1.

    The program's own sizes are fixed, so nothing else goes by it.
    """
    kinds = list(signature_of(program, None).inputs.values())
    sizes = [int(size) for size in kinds[0].shape[:2]] if kinds else []
    batch, length = [max(1, size) for size in [*sizes, 1, 1][:2]]
    return Bucket(batch, length)


def describe_trace(
    engine: Backend, exported: Sequence[ExportedFunction], aliases: Sequence[tuple[int, int]], separate_weights: bool
) -> tuple[TraceDescription, dict[str, torch.Tensor]]:
    """The description of programs that differ in shapes alone, and the tensors of all.

    Raises:
        ValueError: a state has no output, or one of another shape or dtype.
    """
    programs = [one.program for one in exported]
    places, store = dedupe_weights(programs)
    for program in programs:
        _check_aliases(program, aliases)
    in_tree, out_tree = exported[0].in_tree, exported[0].out_tree
    if aliases:
        inputs = len(signature_of(programs[0], None).inputs)
        in_tree = pytree.tree_structure((0,) * (inputs - len(aliases)))
        outputs = out_tree.num_leaves - len(aliases)
        out_tree = pytree.tree_structure(0 if outputs == 1 else (0,) * outputs)
    description = TraceDescription(
        backend=engine.name,
        host=dict(engine.host()),
        programs=tuple(
            TracedProgram(program_directory(index), signature_of(program, None), place)
            for index, (program, place) in enumerate(zip(programs, places, strict=True))
        ),
        in_tree=_written(in_tree),
        out_tree=_written(out_tree),
        aliases=tuple(aliases),
        separate_weights=separate_weights,
        no_batch="the trace keeps state between calls" if aliases else None,
    )
    return description, store


def _check_aliases(program: torch.export.ExportedProgram, aliases: Sequence[tuple[int, int]]) -> None:
    kinds = list(signature_of(program, None).inputs.values())
    outputs = [node.meta["val"] for node in program.graph.output_node().args[0]]
    for place, output in aliases:
        if not 0 <= output < len(outputs):
            raise ValueError(f"input_output_aliases: there is no output {output}, the function gives {len(outputs)}")
        given = TensorType(dtype_name(outputs[output]), tuple(outputs[output].shape))
        if given != kinds[place]:
            raise ValueError(
                f"input_output_aliases: input {place} is {kinds[place].dtype} {list(kinds[place].shape)}, but output "
                f"{output} is {given.dtype} {list(given.shape)}: a state's next value must be like it"
            )


def _written(structure: pytree.TreeSpec) -> str:
    try:
        return pytree.treespec_dumps(structure)
    except NotImplementedError as error:  # torch writes down no other structures than these
        raise LoweringError(
            f"arguments and answers must be tensors in tuples, lists and dicts, not in {structure}"
        ) from error


def initial_state(
    func: Function, example: Sequence[torch.Tensor], held: Sequence[str], aliases: Sequence[tuple[int, int]]
) -> tuple[torch.Tensor, ...]:
    """The values with which states begin: those of the example, or of the module."""
    module = func if isinstance(func, torch.nn.Module) else torch.nn.Module()
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    tensors = [*example, *(own[name] for name in held)]
    return tuple(tensors[place].detach().clone() for place, _ in aliases)
