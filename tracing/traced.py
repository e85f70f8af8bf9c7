"""A traced function over CPU tensors, with the shapes and dtypes of its example; saving and loading."""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..backends.interface import LoadedProgram, LoadError, Weights
from ..backends.registry import get_backend
from ..backends.safetensors_file import WeightsError
from ..backends.signature import Signature, WrongInput
from ..backends.torch_files import torch_file
from ..backends.weights import read_weights
from . import description as descriptions
from .bucket_kernel import FactoryFunction, restore_function, select_bucket
from .description import TempDirectory, TraceDescription, TracedProgram
from .engines import load_program
from .options import assign_core, available_cores, pinned_to_core
from .row_batches import run_in_batches
from .state import StateBuffer


class Traced:
    """Traced function, as returned by `trace`, `bucket_model_trace` and `load`.

    A call takes the positional arguments of the traced function without states, and returns its outputs without their
    next values. The caller may modify the outputs. Calls from several threads run one after the other.

    Attributes:
        description: the description of the trace.
        engine: the engine that runs it.
        store: its tensors, by the keys of `description`.
        core: the core that it runs on; None for any core of the CPU.
    """

    def __init__(
        self,
        description: TraceDescription,
        directory: TempDirectory,
        store: Weights,
        initial: tuple[torch.Tensor, ...] = (),
        kernel: FactoryFunction | None = None,
        preprocessor: FactoryFunction | None = None,
    ) -> None:
        """Create a trace of the programs in `directory`, which is removed with it; load nothing yet.

        `initial` are the initial values of its states.
        """
        self.description, self.store = description, store
        self.engine = get_backend(description.backend)
        self.kernel, self.preprocessor = kernel, preprocessor
        self.state: StateBuffer | None = None
        if description.aliases:
            make_views = None if preprocessor is None else preprocessor.function
            kinds = [list(program.signature.inputs.values()) for program in description.programs]
            shapes = [[[int(size) for size in own[index].shape] for index, _ in description.aliases] for own in kinds]
            self.state = StateBuffer(initial, shapes, make_views)
        self.core: int | None = None
        self._directory = directory
        self._calling = threading.Lock()
        self._in_tree = pytree.treespec_loads(description.in_tree)
        self._out_tree = pytree.treespec_loads(description.out_tree)
        self._runs: list[LoadedProgram] = []
        _known.add(self)

    @property
    def directory(self) -> Path:
        """Directory of the compiled programs."""
        return self._directory.path

    def reload(self) -> None:
        """Load every program with the current weights of `store`, on the current core.

        Raises `LoadError`: this host cannot run the programs.
        """
        if self.core is None:
            self.core = assign_core(self.engine)
        host = self.description.host
        with self._placed():
            threads = torch.get_num_threads()
            runs = [
                load_program(self.engine, self.directory / one.directory, self._weights(one), host, threads, self.core)
                for one in self.description.programs
            ]
        with self._calling:
            self._runs = runs

    @property
    def is_loaded(self) -> bool:
        """Whether the programs are loaded; without the engine's device, the first call loads them."""
        return bool(self._runs)

    def reset_state(self) -> None:
        """Restore the initial state for the next call."""
        if self.state is not None:
            with self._calling:
                self.state.reset()

    def save(self, path: str | Path) -> None:
        """Write the trace into one file, with weights and the initial state. It appears only when it is complete.

        Raises `ValueError`: a bucket kernel or a preprocessor is neither scripted nor importable.
        """
        kernel, preprocessor = (None if one is None else one.serialize() for one in (self.kernel, self.preprocessor))
        description = replace(self.description, kernel=kernel, preprocessor=preprocessor)
        states = {} if self.state is None else {str(index): tensor for index, tensor in enumerate(self.state.initial)}
        tensors = {_WEIGHTS: dict(self.store), _STATE: states}
        with tempfile.TemporaryDirectory(prefix="traced-", dir=Path(path).resolve().parent) as scratch:
            complete = Path(scratch) / "complete"
            with zipfile.ZipFile(complete, "w") as archive:
                archive.writestr(_CONTENTS, descriptions.to_json(description))
                for file in sorted(file for file in self.directory.rglob("*") if file.is_file()):
                    archive.write(file, file.relative_to(self.directory), zipfile.ZIP_DEFLATED)
                for name, content in tensors.items():
                    with torch_file(Path(scratch) / name) as opened:
                        torch.save(content, opened)
                    archive.write(Path(scratch) / name, name)
            complete.replace(path)

    def __call__(self, *inputs: Any) -> Any:
        """Run the trace.

        Raises `WrongInput`: (a ValueError) the structure, a shape or a dtype differs from the example, or no bucket
        fits.
        Raises `LoadError`: it was traced for a device that this host does not have.
        """
        tensors = self._flat(inputs)
        if not self.is_loaded:
            self.reload()
        with self._calling, torch.no_grad(), self._placed():
            if self.description.any_batch:
                run = partial(self._call_program, 0)
                outputs = run_in_batches(run, self.description.programs[0].signature, tensors)
                self._check_longest(0, tensors)
            else:
                outputs = self._run(tensors)
        return pytree.tree_unflatten(outputs, self._out_tree)

    def enter_fork(self) -> None:
        """Renew the lock: a fork has no thread of its parent that could release it."""
        self._calling = threading.Lock()

    def _weights(self, program: TracedProgram) -> dict[str, torch.Tensor]:
        return {name: self.store[key] for name, key in program.weight_keys.items()}

    def _placed(self) -> AbstractContextManager[None]:
        return pinned_to_core(self.engine, self.core)

    def _flat(self, inputs: tuple[Any, ...]) -> list[torch.Tensor]:
        tensors, structure = pytree.tree_flatten(inputs)
        if structure != self._in_tree:
            tensors = self._in_order(inputs, structure)
        for tensor in tensors:
            if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cpu":
                what = f"a tensor on {tensor.device}" if isinstance(tensor, torch.Tensor) else repr(tensor)
                raise WrongInput(f"a trace takes tensors on the CPU, not {what}")
        return [tensor.detach() for tensor in tensors]

    def _run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        bucket, inputs = 0, list(tensors)
        if self.kernel is not None:
            states = {index for index, _ in self.description.aliases}
            kinds = (program.signature.inputs.values() for program in self.description.programs)
            shapes = [[kind.shape for index, kind in enumerate(own) if index not in states] for own in kinds]
            inputs, bucket = select_bucket(self.kernel.function, tensors, shapes)
        signature = self.description.programs[bucket].signature
        if self.state is None:
            signature.check_inputs(inputs)
            self._check_longest(bucket, inputs)
            return self._call_program(bucket, inputs)
        return self._run_with_state(self.state, bucket, signature, inputs)

    def _in_order(self, inputs: tuple[Any, ...], structure: pytree.TreeSpec) -> list[Any]:
        """Return the tensors in the order of the trace: the keys of dicts may be in any order."""
        try:
            leaves: list[Any] = self._in_tree.flatten_up_to(inputs)
        except (TypeError, ValueError):
            leaves = []
        if len(leaves) != structure.num_leaves or not all(isinstance(one, torch.Tensor) for one in leaves):
            raise WrongInput(
                f"called with {_format_structure(structure)}, but traced with {_format_structure(self._in_tree)}"
            )
        return leaves

    def _check_longest(self, bucket: int, inputs: Sequence[torch.Tensor]) -> None:
        longest = self.description.programs[bucket].longest
        if longest is not None:
            longest.check(inputs)

    def _call_program(self, bucket: int, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return list(self._runs[bucket]([tensor.contiguous() for tensor in inputs]))

    def _run_with_state(
        self, state: StateBuffer, bucket: int, signature: Signature, tensors: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        views = state.views(bucket)
        states = [index for index, _ in self.description.aliases]
        rest = iter(tensors)
        if len(tensors) + len(views) != len(signature.inputs):
            expected = len(signature.inputs) - len(views)
            raise WrongInput(f"{len(tensors)} inputs in addition to the state, expected {expected}")
        inputs = [views[states.index(i)] if i in states else next(rest) for i in range(len(signature.inputs))]
        signature.check_inputs(inputs)
        self._check_longest(bucket, inputs)
        outputs = self._call_program(bucket, inputs)
        state_outputs = [index for _, index in self.description.aliases]
        results = [state.copy_if_state(output) for i, output in enumerate(outputs) if i not in state_outputs]
        state.store_next(views, [outputs[index] for index in state_outputs])
        return results


_known: weakref.WeakSet[Traced] = weakref.WeakSet()


def _enter_fork() -> None:
    for one in _known:
        one.enter_fork()


os.register_at_fork(after_in_child=_enter_fork)


def _format_structure(structure: pytree.TreeSpec) -> str:
    """Format the structure of arguments as Python would print it.

    >>> _format_structure(pytree.tree_structure((1, (2, 3))))
    '(tensor, (tensor, tensor))'
    """
    return repr(pytree.tree_unflatten([_TensorName()] * structure.num_leaves, structure))


class _TensorName:
    def __repr__(self) -> str:
        return "tensor"


_CONTENTS = "traced.json"
_WEIGHTS = "weights.pt"
_STATE = "state.pt"


def load(path: str | Path) -> Traced:
    """Read a file of `Traced.save`, and load its programs on this host.

    The file contains compiled code and may name a function to import: load only files that you trust.

    Raises `LoadError`: there is no such file, it is damaged, or this host cannot run it; says what to do.
    """
    directory = TempDirectory()
    root = directory.path
    try:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(root)
        description = descriptions.from_json((root / _CONTENTS).read_text(encoding="utf-8"))
        store, states = read_weights(root / _WEIGHTS), read_weights(root / _STATE)
    except (OSError, zipfile.BadZipFile, KeyError, WeightsError) as error:
        raise LoadError(f"{path} cannot be read as a traced file: {error}") from error
    for name in (_CONTENTS, _WEIGHTS, _STATE):  # they are mapped into memory; `save` copies the rest of the directory
        (root / name).unlink()
    kernel = None if description.kernel is None else restore_function(description.kernel)
    preprocessor = None if description.preprocessor is None else restore_function(description.preprocessor)
    _check_complete(description, store, states)
    initial = tuple(states[str(index)] for index in range(len(description.aliases)))
    traced = Traced(description, directory, store, initial, kernel, preprocessor)
    traced.reload()
    return traced


def _check_complete(description: TraceDescription, store: Weights, states: Mapping[str, torch.Tensor]) -> None:
    missing = {key for program in description.programs for key in program.weight_keys.values()} - set(store)
    missing |= {f"{_STATE}/{index}" for index in range(len(description.aliases)) if str(index) not in states}
    if missing:
        raise LoadError(f"the traced file lacks the tensors {', '.join(sorted(missing))}: trace the function again")


def move_trace_to_device(traced: Traced, device_id: int) -> None:
    """Move `traced` to core `device_id`, counted from 0, and load it again there.

    Cores are those of the engine's devices; traces without a selected core use them in rotation. For an engine that
    runs on the CPU, the cores are those that this process may use. During a call, the calling thread is pinned to the
    core, and torch uses one thread; threads that the engine starts while loading stay on the core. Without a selection,
    a trace runs on any core, with torch's number of threads.

    Raises `ValueError`: there is no such core.
    Raises `LoadError`: the program cannot be loaded there.
    """
    cores = available_cores(traced.engine)
    if not 0 <= device_id < len(cores):
        raise ValueError(f"device {device_id}: this process may use {len(cores)} cores, 0 to {len(cores) - 1}")
    traced.core = cores[device_id]
    traced.reload()


def dynamic_batch(traced: Traced) -> Traced:
    """Allow calls of `traced` with any number of rows; changes it in place and returns it.

    Rows are dimension 0 of every input and every output. A call runs as several batches with the example's number of
    rows. The last batch is padded by repeating its last row.

    Raises `ValueError`: dimension 0 is not the batch dimension of every input and output (time-major data, states by
    layer); its size differs between inputs; or the trace has buckets or keeps state, which batches would mix.
    """
    if traced.kernel is not None:
        raise ValueError("a trace with buckets selects one by its kernel: add a bucket for each batch size instead")
    if traced.description.aliases:
        raise ValueError(
            "a trace that keeps state between calls cannot run in several batches: each would change the state"
        )
    if traced.description.no_batch is not None:
        raise ValueError(f"dynamic_batch: {traced.description.no_batch}")
    traced.description = replace(traced.description, any_batch=True)
    return traced
