"""A traced function: CPU tensors in, CPU tensors out, at the shapes and dtypes it was traced with."""

from __future__ import annotations

import tempfile
import threading
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..backends.interface import LoadedProgram, LoadError
from ..backends.registry import get_backend
from ..backends.signature import Signature, WrongInput
from ..backends.weights import WeightsError, copy_if_aliased, read_weights, storage_ptrs
from . import description as descriptions
from .bucket_kernel import FactoryFunction, restore_function, select_bucket
from .description import TempDirectory, TraceDescription, TracedProgram
from .devices import assign_core, available_cores, pinned_to_core
from .engines import load_program
from .row_batches import run_in_batches
from .state import StateBuffer


class Traced:
    """What `trace`, `bucket_model_trace` and `load` give.

    A call takes the positional arguments of the traced function without states, and gives what it gave without their
    next values. Answers are the caller's. Calls from several threads wait for each other.

    Attributes:
        description: the description.
        engine: what runs it.
        store: its tensors, by where `description` says they are.
        core: where it runs; None on a CPU where nothing else was said.
    """

    def __init__(
        self,
        description: TraceDescription,
        directory: TempDirectory,
        store: Mapping[str, torch.Tensor],
        state: StateBuffer | None = None,
        kernel: FactoryFunction | None = None,
        preprocessor: FactoryFunction | None = None,
    ) -> None:
        """The programs in `directory`, which goes when the trace does; not loaded yet."""
        self.description, self.store = description, store
        self.engine = get_backend(description.backend)
        self.state, self.kernel, self.preprocessor = state, kernel, preprocessor
        self.any_batch = False
        self.core: int | None = None
        self._directory = directory
        self._calling = threading.Lock()
        self._in_tree, self._out_tree = (
            pytree.treespec_loads(description.in_tree),
            pytree.treespec_loads(description.out_tree),
        )
        self._runs: list[LoadedProgram] = []
        self._held: frozenset[int] = frozenset()

    @property
    def directory(self) -> Path:
        """Where the compiled programs lie."""
        return self._directory.path

    def reload(self) -> None:
        """Load every program: with the weights that are in `store` now, on the core that is named now.

        Raises:
            LoadError: this host cannot run them.
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
            self._held = storage_ptrs(self.store.values())

    @property
    def is_loaded(self) -> bool:
        """Whether the programs are ready to run; where the engine's device is not here they are loaded when called."""
        return bool(self._runs)

    def reset_state(self) -> None:
        """Let the next call begin from the initial state."""
        if self.state is not None:
            with self._calling:
                self.state.reset()

    def save(self, path: str | Path) -> None:
        """Write everything into one file, weights included. State is written as it was at the beginning.

        Raises:
            ValueError: a bucket kernel or a preprocessor is neither scripted nor found by an import.
        """
        save(self, Path(path))

    def __call__(self, *inputs: Any) -> Any:
        """One call.

        Raises:
            WrongInput: (a ValueError) another structure, shape or dtype than was traced, or no bucket for it.
            LoadError: it was traced for a device that this host does not have.
        """
        tensors = self._flat(inputs)
        if not self.is_loaded:
            self.reload()
        with self._calling, torch.no_grad(), self._placed():
            if self.any_batch:
                answers = run_in_batches(self._run, self.description.programs[0].signature, tensors)
            else:
                answers = self._run(tensors)
        return pytree.tree_unflatten(answers, self._out_tree)

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
        """The program that is meant, on what the caller gave and the state."""
        bucket, given = 0, list(tensors)
        if self.kernel is not None:
            shapes = [
                list(caller_input_shapes(one.signature, self.description.aliases)) for one in self.description.programs
            ]
            given, bucket = select_bucket(self.kernel.function, tensors, shapes)
        signature = self.description.programs[bucket].signature
        if self.state is None:
            signature.check_inputs(given)
            return self._answered(bucket, given)
        return self._run_with_state(self.state, bucket, signature, given)

    def _in_order(self, inputs: tuple[Any, ...], structure: pytree.TreeSpec) -> list[Any]:
        """The tensors in the order of the trace: dicts may be given in any order of their keys."""
        try:
            leaves: list[Any] = self._in_tree.flatten_up_to(inputs)
        except (TypeError, ValueError):
            leaves = []
        if len(leaves) != structure.num_leaves or not all(isinstance(one, torch.Tensor) for one in leaves):
            raise WrongInput(f"called with {_words(structure)}, but traced with {_words(self._in_tree)}")
        return leaves

    def _answered(self, bucket: int, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What a program gives; a weight that is an answer as it is would be changed with the answer, so a copy."""
        outputs = self._runs[bucket]([tensor.contiguous() for tensor in inputs])
        return [copy_if_aliased(output, self._held) for output in outputs]

    def _run_with_state(
        self, state: StateBuffer, bucket: int, signature: Signature, given: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        views = state.views(bucket)
        places = [place for place, _ in self.description.aliases]
        rest = iter(given)
        if len(given) + len(views) != len(signature.inputs):
            raise WrongInput(f"{len(given)} inputs beside the state, expected {len(signature.inputs) - len(views)}")
        inputs = [views[places.index(i)] if i in places else next(rest) for i in range(len(signature.inputs))]
        signature.check_inputs(inputs)
        outputs = self._answered(bucket, inputs)
        following = [place for _, place in self.description.aliases]
        answers = [state.copy_if_state(output) for place, output in enumerate(outputs) if place not in following]
        state.store_next(views, [outputs[place] for place in following])
        return answers


def caller_input_shapes(signature: Signature, aliases: Sequence[tuple[int, int]]) -> list[tuple[int | str, ...]]:
    """The shapes of what the caller gives."""
    held = {place for place, _ in aliases}
    return [kind.shape for place, kind in enumerate(signature.inputs.values()) if place not in held]


def _words(structure: pytree.TreeSpec) -> str:
    """How arguments are put together, as Python would print it.

    >>> _words(pytree.tree_structure((1, (2, 3))))
    '(tensor, (tensor, tensor))'
    """
    tensors = pytree.tree_unflatten([_Word()] * structure.num_leaves, structure)
    return repr(tensors)


class _Word:
    def __repr__(self) -> str:
        return "tensor"


_CONTENTS = "traced.json"
_WEIGHTS = "weights.pt"
_STATE = "state.pt"


def save(traced: Traced, path: Path) -> None:
    """Write `traced`; the file is there when it is whole.

    Raises:
        ValueError: a kernel or a preprocessor cannot be found again.
    """
    description = replace(
        traced.description,
        any_batch=traced.any_batch,
        kernel=None if traced.kernel is None else traced.kernel.serialize(),
        preprocessor=None if traced.preprocessor is None else traced.preprocessor.serialize(),
    )
    tensors = {_WEIGHTS: dict(traced.store), _STATE: _numbered(traced.state)}
    with tempfile.TemporaryDirectory(prefix="traced-", dir=path.resolve().parent) as scratch:
        whole = Path(scratch) / "whole"
        with zipfile.ZipFile(whole, "w") as archive:
            archive.writestr(_CONTENTS, descriptions.to_json(description))
            for file in sorted(file for file in traced.directory.rglob("*") if file.is_file()):
                archive.write(file, file.relative_to(traced.directory), zipfile.ZIP_DEFLATED)
            for name, content in tensors.items():
                torch.save(content, Path(scratch) / name)
                archive.write(Path(scratch) / name, name)
        whole.replace(path)


def _numbered(state: StateBuffer | None) -> dict[str, torch.Tensor]:
    return {} if state is None else {str(place): tensor for place, tensor in enumerate(state.initial)}


def load(path: str | Path) -> Traced:
    """Read what `Traced.save` wrote, and load it for this host's CPU.

    The file holds compiled code, and may name a function to import: load only what you would run.

    Raises:
        LoadError: there is no such file, it is damaged, or this host cannot run what is in it; says what to do.
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
    for name in (_CONTENTS, _WEIGHTS, _STATE):  # mapped into memory; what stays is what `save` takes from the directory
        (root / name).unlink()
    kernel = None if description.kernel is None else restore_function(description.kernel)
    preprocessor = None if description.preprocessor is None else restore_function(description.preprocessor)
    state = None
    _check_complete(description, store, states)
    if description.aliases:
        initial = tuple(states[str(place)] for place in range(len(description.aliases)))
        state = StateBuffer(initial, state_shapes(description), None if preprocessor is None else preprocessor.function)
    traced = Traced(description, directory, store, state, kernel, preprocessor)
    traced.any_batch = description.any_batch
    traced.reload()
    return traced


def state_shapes(description: TraceDescription) -> list[list[list[int]]]:
    """The shape of each state, by bucket."""
    kinds = [list(program.signature.inputs.values()) for program in description.programs]
    return [[[int(size) for size in own[place].shape] for place, _ in description.aliases] for own in kinds]


def _check_complete(
    description: TraceDescription, store: Mapping[str, torch.Tensor], states: Mapping[str, torch.Tensor]
) -> None:
    missing = {key for program in description.programs for key in program.weight_keys.values()} - set(store)
    missing |= {f"{_STATE}/{place}" for place in range(len(description.aliases)) if str(place) not in states}
    if missing:
        raise LoadError(f"the traced file lacks the tensors {', '.join(sorted(missing))}: trace the function again")


def move_trace_to_device(traced: Traced, device_id: int) -> None:
    """Let `traced` run on core `device_id` from now on, counted from 0; it is loaded again there.

    Cores are those of the engine's devices. Traces that are told nothing take turns on them.

    For an engine that runs on the CPU they are those that this process may use: the calling thread is on the core for
    the length of a call, threads that the engine starts while it loads stay there, and there is one thread. Without
    this a trace runs wherever the system puts it, with as many threads as torch has.

    Raises:
        ValueError: there is no such core.
        LoadError: the program cannot be loaded there.
    """
    cores = available_cores(traced.engine)
    if not 0 <= device_id < len(cores):
        raise ValueError(f"device {device_id}: this process may use {len(cores)} cores, 0 to {len(cores) - 1}")
    traced.core = cores[device_id]
    traced.reload()


def dynamic_batch(traced: Traced) -> Traced:
    """Let `traced` take any number of rows; it is changed in place, and given back.

    Rows are dimension 0 of every input and every answer. A call costs as many runs as it has chunks of the example's
    rows. Where a row is missing in the last chunk, its last row stands in.

    Raises:
        ValueError: dimension 0 is not the batch of every input and answer (time-major data, a state of layers by rows),
            is not the same for all, or the trace has buckets or keeps state, which chunks would mix.
    """
    if traced.kernel is not None:
        raise ValueError("a trace of buckets chooses one by its kernel: give it a bucket for each batch instead")
    if traced.description.aliases:
        raise ValueError(
            "a trace that keeps state between calls cannot be cut into chunks: each would change the state"
        )
    if traced.description.no_batch is not None:
        raise ValueError(f"dynamic_batch: {traced.description.no_batch}")
    traced.any_batch = True
    return traced
