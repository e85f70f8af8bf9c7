"""Tracing of a function at the shapes of an example, and what its engine supports of it beforehand."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from ..backends.exported_program import specialize
from ..backends.interface import Backend, CompileError
from ..backends.partitioning.cut_analysis import analyze_operators
from ..backends.partitioning.partition import PartitionError
from ..backends.registry import get_backend
from ..backends.signature import Signature, TensorType, dtype_name, signature_of
from ..bucketing.shapes import Bucket
from ..config.partitioner import PartitionerConfig
from ..lowering.errors import LoweringError, node_line
from .description import TempDirectory, TraceDescription, TracedProgram
from .engines import AUTO, preserve_torch_threads, select_engines
from .export import ExportedFunction, Function, eval_mode, export_function, flatten_example
from .options import TraceOptions, compile_settings
from .row_batches import not_batchable_reason
from .state import resolve_aliases
from .traced import Traced
from .weights import dedupe_weights


def trace(
    func: Function,
    example_inputs: Any,
    *,
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
        input_output_aliases: for each state (the index of an example's tensor, that tensor, or a buffer of the module)
            the index of the output that is its next value. The trace keeps the states: calls neither pass nor receive
            them.
        compiler_workdir: directory of the compiler's intermediate files.
        compiler_args: arguments of the engine's compiler, as a string or a list.
        partitioner_config: a `PartitionerConfig`: operators that the engine does not support run on the CPU.
        inline_weights_to_neff: False allows `replace_weights`.
        cpu_backend: compile for a device that is not here; for an engine with such devices it needs `--target`.
        backend: an engine's name, or "auto": the first of inductor, onnxruntime and eager that supports the function.
        compiler_python: the Python interpreter of the engine's compiler, if it is not this one.

    Raises `LoweringError`: the function cannot become a program of fixed shapes; names the reason and the line.
    Raises `CompileError`: the engine does not support the function, or is not available.
    Raises `ValueError`, `TypeError`: the options or the example are invalid; PartitionError is a ValueError for options
    of the partitioner that cannot be satisfied.
    """
    options = TraceOptions(
        compiler_workdir, compiler_args, partitioner_config, inline_weights_to_neff, cpu_backend, compiler_python
    )
    exported = export_with_states(func, example_inputs, input_output_aliases)
    directory = TempDirectory()
    tried = select_engines(backend, options)
    engine = _compile(tried, exported.program, directory.path / program_directory(0), options)
    description, store = describe_trace(engine, [exported], not inline_weights_to_neff)
    if exported.aliases:
        return try_load(Traced(description, directory, store, exported.initial))
    tensors, in_tree = flatten_example(example_inputs)
    with eval_mode(func):
        description = replace(description, no_batch=not_batchable_reason(func, tensors, in_tree))
    return try_load(Traced(description, directory, store))


def analyze(
    func: Function,
    example_inputs: Any,
    compiler_workdir: str | Path | None = None,
    *,
    additional_ignored_ops: Collection[str] | None = None,
    max_workers: int = 1,
    backend: str = AUTO,
) -> dict[str, Any]:
    """Report the operators of `func` that the engine supports, and the lines of all others.

    >>> found = analyze(lambda x: torch.relu(x) + 1, torch.ones(3), backend="eager")
    >>> found["support_percentage"], found["supported_operators"]
    ('100.00%', {'aten': {'aten::add': 1, 'aten::relu': 1}})

    Args:
        func: as for `trace`.
        example_inputs: as for `trace`.
        compiler_workdir: without effect, as `max_workers`: nothing is compiled to query an engine.
        additional_ignored_ops: operators that are neither queried nor counted, as in {"aten::sort"}.
        max_workers: without effect.
        backend: an engine's name; "auto" is the first one available. A named one need not be installed.

    Returns:
        `backend`, `torch_version`, `support_percentage`, `supported_operators` by library with the number of calls, and
        `unsupported_operators` with `kind`, `failureAt`, `call` (the line, None if unknown), `reason`.

    Raises `LoweringError`, `CompileError`, `LoadError`, `ValueError`, `TypeError`: as `trace`.
    """
    config = PartitionerConfig(analyze_parameters={"additional_ignored_ops": tuple(additional_ignored_ops or ())})
    engine = select_engines(AUTO, TraceOptions())[0] if backend == AUTO else get_backend(backend)
    program = export_function(func, example_inputs).program
    result = analyze_operators(engine, specialize(program, program_bucket(program)), config, node_line).to_json()
    keys = ("support_percentage", "supported_operators", "unsupported_operators")
    return {"backend": engine.name, "torch_version": torch.__version__, **{key: result[key] for key in keys}}


def export_with_states(func: Function, example_inputs: Any, states: Mapping[Any, int] | None) -> ExportedFunction:
    """Export a function with its states, which are the `input_output_aliases` of `trace`."""
    example = [leaf for leaf in pytree.tree_leaves(example_inputs) if isinstance(leaf, torch.Tensor)]
    held, aliases = resolve_aliases(states, func, example)
    exported = export_function(func, example_inputs, list(held))
    tensors = [*example, *held.values()]
    initial = tuple(tensors[index].detach().clone() for index, _ in aliases)
    return replace(exported, aliases=aliases, initial=initial)


def try_load(traced: Traced) -> Traced:
    """Load a trace if this host can run it; a trace for another device can still be saved."""
    if traced.engine.unavailable() is None:
        traced.reload()
    return traced


def _compile(tried: Sequence[Backend], program: ExportedProgram, directory: Path, options: TraceOptions) -> Backend:
    """Compile with the first engine that supports the program, in this process."""
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
            errors.append(str(error))
            shutil.rmtree(directory)
        else:
            return engine
    raise CompileError("\n".join(errors))


def program_directory(bucket: int) -> str:
    """Return the path of a program in the directory of a trace."""
    return f"programs/{bucket}"


def program_bucket(program: ExportedProgram) -> Bucket:
    """Return the bucket that names the shape of a program: the first two sizes of its first input, or 1.

    The program's own sizes are fixed, so the bucket is used as a name only.
    """
    kinds = list(signature_of(program, None).inputs.values())
    sizes = [int(size) for size in kinds[0].shape[:2]] if kinds else []
    batch, length = [max(1, size) for size in [*sizes, 1, 1][:2]]
    return Bucket(batch, length)


def describe_trace(
    engine: Backend, exported: Sequence[ExportedFunction], separate_weights: bool
) -> tuple[TraceDescription, dict[str, torch.Tensor]]:
    """Describe programs that differ in shapes only, and collect their tensors.

    Raises `ValueError`: the output of a state does not exist, or has another shape or dtype.
    """
    keys, store = dedupe_weights([one.program for one in exported])
    first, signatures = exported[0], [signature_of(one.program, None) for one in exported]
    in_tree, out_tree, aliases = first.in_tree, first.out_tree, first.aliases
    for one, signature in zip(exported, signatures, strict=True):
        _check_aliases(one.program, signature, aliases)
    if aliases:
        inputs = len(signatures[0].inputs)
        in_tree = pytree.tree_structure((0,) * (inputs - len(aliases)))
        outputs = out_tree.num_leaves - len(aliases)
        out_tree = pytree.tree_structure(0 if outputs == 1 else (0,) * outputs)
    description = TraceDescription(
        backend=engine.name,
        host=dict(engine.host()),
        programs=tuple(
            TracedProgram(program_directory(index), signature, own_keys, one.longest)
            for index, (one, signature, own_keys) in enumerate(zip(exported, signatures, keys, strict=True))
        ),
        in_tree=_serialized(in_tree),
        out_tree=_serialized(out_tree),
        aliases=tuple(aliases),
        separate_weights=separate_weights,
    )
    return description, store


def _check_aliases(program: ExportedProgram, signature: Signature, aliases: Sequence[tuple[int, int]]) -> None:
    kinds = list(signature.inputs.values())
    outputs = [node.meta["val"] for node in program.graph.output_node().args[0]]
    for index, output in aliases:
        if not 0 <= output < len(outputs):
            raise ValueError(f"input_output_aliases: there is no output {output}, the function returns {len(outputs)}")
        actual = TensorType(dtype_name(outputs[output]), tuple(outputs[output].shape))
        if actual != kinds[index]:
            raise ValueError(
                f"input_output_aliases: input {index} is {kinds[index].dtype} {list(kinds[index].shape)}, but output "
                f"{output} is {actual.dtype} {list(actual.shape)}: they must be equal"
            )


def _serialized(structure: pytree.TreeSpec) -> str:
    try:
        return pytree.treespec_dumps(structure)
    except NotImplementedError as error:  # torch serialises no other structures
        raise LoweringError(
            f"arguments and outputs must be tensors in tuples, lists and dicts, not in {structure}"
        ) from error
