"""Loading of an unpacked archive.

Packaging verifies programs through the same class that serves them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Optional, Protocol

import torch

from ...backends.cores import are_threads_lost, available_cores, set_torch_threads
from ...backends.interface import Backend, LoadError, Rehearsal, Weights
from ...backends.interface import LoadedProgram as Program
from ...backends.partitioning.partitioned_program import is_partitioned, load_compiled, load_sharing_device
from ...backends.registry import get_backend
from ...backends.safetensors_file import WeightsError
from ...backends.target_machine import check_host
from ...backends.weights import read_weights
from ...bucketing.cost import CostModel
from ...bucketing.errors import BUG
from ...bucketing.execute import Pad, Tensors, execute
from ...bucketing.execute_chunks import ChunkSignature, ResumedState, RunChain, execute_chunks
from ...bucketing.padding import lengths_tensor, pad, padding_tensor
from ...bucketing.plan import Plan, single_bucket_plan
from ...bucketing.planner import Planner, make_planner
from ...bucketing.shapes import Bucket, DynamicShape, ProgramRole, Shapes, role_buckets
from ...config.json_codec import REPACKAGE
from ...config.manifest import FILE_NAME, Manifest, Variant, read_manifest
from .requirements import check_memory, check_requirements
from .user_code import Importing, load_bucket_selector, working_directory

if TYPE_CHECKING:
    from .own_model import Answer, OwnProgram

Programs = Mapping[Optional[Bucket], Program]
"""The loaded programs of one role, by the bucket that each serves; None serves every one."""

_LONGEST_CAUSE = 300  # characters of an engine's error
_MOST_PLANS = 4096
"""Plans of single sequences that are kept, one for each length."""
_MOST_CALLS = 16
"""Calls of a plan that is kept: one has a call for each chunk, of some 150 bytes."""


class ServedModel(Protocol):
    """The interface of a `LoadedArchive` that requests and verification use."""

    @property
    def manifest(self) -> Manifest:
        """The archive's manifest."""

    def plan(self, lengths: Sequence[int]) -> Plan:
        """Return the cheapest plan for sequences of these lengths."""

    def run_plan(
        self,
        plan: Plan,
        sequences: Sequence[Sequence[torch.Tensor]],
        lengths: Sequence[int],
        pad: Pad = pad,
        resumed: ResumedState | None = None,
    ) -> tuple[list[Tensors], Tensors]:
        """Run a plan; returns the outputs of each sequence, in their order, and the carry.

        See `LoadedArchive.run_plan`.
        """


@dataclass(frozen=True)
class LoadedArchive:
    """The loaded programs of one archive, sharing one copy of the weights."""

    manifest: Manifest
    planner: Planner
    threads: int
    """Threads that each program may use."""
    programs: Mapping[ProgramRole, Programs]
    own: OwnProgram | None = None
    """The model itself, if it answers in place of programs, or what is too short for them."""

    @property
    def runs_in_forks(self) -> bool:
        """Whether the programs also run in a fork of the process that loaded them."""
        return get_backend(self.manifest.backend).runs_in_forks

    @cached_property
    def chunk_signature(self) -> ChunkSignature:
        """The tensor layouts of a model that runs in chunks of time."""
        return ChunkSignature(self.manifest.inputs, self.manifest.outputs, self.manifest.carried)

    def run(self, role: ProgramRole, bucket: Bucket, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Call a bucket's program with padded inputs (then lengths[B] where it takes them). Returns padded outputs."""
        programs = self.programs[role]
        return (programs.get(bucket) or programs[None])(tensors)

    @cached_property
    def chain(self) -> RunChain | None:
        """The engine's function for several chunks in sequence, if it has one."""
        return getattr(self.programs["chunk"].get(None), "chain", None)

    @cached_property
    def _answer(self) -> Answer | None:
        """The function by which the model itself answers one request."""
        return None if self.own is None else self.own.answering(self.manifest.outputs)

    @cached_property
    def wake(self) -> Callable[[], None]:
        """The function that wakes the engine's threads: a plan will be run soon."""
        return getattr(self.programs[self.manifest.kind].get(None), "wake", lambda: None)

    def plan(self, lengths: Sequence[int]) -> Plan:
        """Return the cheapest plan for sequences of these lengths."""
        return self.planner.plan(lengths) if len(lengths) != 1 else self._plan_alone(lengths[0])

    @cached_property
    def _plan_alone(self) -> Callable[[int], Plan]:
        """The plan of one sequence, which its length alone determines. Short ones are kept: planning takes 10 us."""
        planner = self.planner
        kept: dict[int, Plan] = {}

        def plan_alone(length: int) -> Plan:
            plan = kept.get(length)
            if plan is None:
                plan = planner.plan((length,))
                if len(plan.calls) <= _MOST_CALLS:
                    if len(kept) >= _MOST_PLANS:
                        kept.clear()
                    kept[length] = plan
            return plan

        return plan_alone

    def run_plan(
        self,
        plan: Plan,
        sequences: Sequence[Sequence[torch.Tensor]],
        lengths: Sequence[int],
        pad: Pad = pad,
        resumed: ResumedState | None = None,
    ) -> tuple[list[Tensors], Tensors]:
        """Run the plan that was made for these lengths.

        Returns the outputs of each sequence, which may share memory. With `resumed`, each sequence is the next chunk of
        a longer one, of a model that runs in chunks: returned besides is the carry after it, from which the one after
        it is resumed. Else the carry is empty.
        """
        facts = self.manifest
        if (answer := self._answer) is not None and min(lengths) < facts.programs_from:
            return self._run_beside(answer, sequences, lengths, pad), ()
        with torch.no_grad():
            if facts.kind == "chunk":
                signature = self.chunk_signature
                return execute_chunks(plan, sequences, lengths, signature, self.run, pad, self.chain, resumed)
            run = partial(self.run, "sequence")
            return execute(plan, sequences, lengths, facts.inputs, facts.outputs, facts.takes_lengths, run, pad), ()

    def _run_beside(
        self, answer: Answer, sequences: Sequence[Sequence[torch.Tensor]], lengths: Sequence[int], pad: Pad
    ) -> list[Tensors]:
        """Let the model itself answer the sequences that the programs do not take, and these the others."""
        first = self.manifest.programs_from
        by_programs: Iterator[Tensors] = iter(())
        if longer := [index for index, length in enumerate(lengths) if length >= first]:
            others = [lengths[index] for index in longer]
            by_programs = iter(self.run_plan(self.plan(others), [sequences[index] for index in longer], others, pad)[0])
        return [
            answer(tensors, length) if length < first else next(by_programs)
            for tensors, length in zip(sequences, lengths)
        ]


def load_archive(
    directory: Path, threads: int | None = None, device: str | None = None, importing: Importing = working_directory
) -> LoadedArchive:
    """Load and warm every program of the archive unpacked in `directory`.

    `threads` is the number that each program may use; None: the manifest's, or else one for each available core; one in
    a fork that has lost its parent's threads.
    `device` is the one that a server gives, such as cuda:1; the manifest's own comes before it. `importing` lets the
    user's bucket selector be imported, and the files of a model that answers by its own code.

    Whoever unpacked the archive has compared its files with their list.

    Raises `RuntimeError`: this host cannot run the archive; the message says what to do.
    """
    if are_threads_lost():
        torch.set_num_threads(1)  # before anything is computed
    manifest = read_manifest(directory)
    manifest = replace(manifest, device=manifest.device or device)
    check_memory(manifest)
    check_requirements(manifest.requires, manifest.backend)
    threads = threads or (1 if are_threads_lost() else manifest.threads or available_cores())
    files = [directory / file for file in (manifest.weights, manifest.constants) if file is not None]
    try:  # mapped, so that workers share the pages
        weights = {name: tensor for file in files for name, tensor in read_weights(file).items()}
    except WeightsError as error:
        raise LoadError(f"{error}: {REPACKAGE}") from error
    own = _load_own_model(directory, manifest, threads, weights, importing)
    table = load_bucket_selector(manifest.kernel, manifest.grid.lengths, directory, importing)
    archive = LoadedArchive(
        manifest=manifest,
        planner=planner_from_manifest(manifest, table),
        threads=threads,
        programs=_load_programs(directory, manifest, threads, weights)
        if own is None or manifest.model is None
        else {"sequence": {None: own}},
        own=own,
    )
    if manifest.model is not None and not manifest.model.answers_padding:
        return archive
    # The largest first: where the device keeps memory for each, that of the largest serves the others.
    for bucket in sorted(manifest.grid.buckets, key=lambda bucket: bucket.batch * bucket.length, reverse=True):
        with nullcontext() if own is None else importing(directory):
            _call_first(archive, bucket)
    return archive


def _load_own_model(
    directory: Path, manifest: Manifest, threads: int, weights: Weights, importing: Importing
) -> OwnProgram | None:
    """Make the model itself. Only archives that are served by it, or in part, carry the files for it."""
    model = manifest.model if manifest.short is None else manifest.short.model
    if model is None:
        return None
    from .own_model import load_own_model

    if model.recurrences is not None:
        check_host(manifest.host)
    set_torch_threads(threads)
    return load_own_model(model, manifest.inputs, directory, weights, partial(importing, directory), threads)


def _call_first(archive: LoadedArchive, bucket: Bucket) -> None:
    """Run the programs in a bucket for the first time.

    Raises `LoadError`: they are not the programs that the manifest declares, or are damaged.
    Raises `MemoryError`: out of memory.
    """
    try:
        warm_up(archive, bucket, bucket.batch)
    except (LoadError, MemoryError):
        raise
    except Exception as error:  # engines raise any exception
        cause = " ".join(str(error).removeprefix(BUG).split())[:_LONGEST_CAUSE]
        if "can't allocate memory" in cause:  # torch's own error
            raise MemoryError(f"out of memory for a call of {bucket.batch} x {bucket.length}: {cause}") from error
        raise LoadError(
            f"the programs do not run in the bucket {bucket.batch} x {bucket.length} as {FILE_NAME} declares them "
            f"({type(error).__name__}: {cause}): {REPACKAGE}"
        ) from error


def warm_up(model: ServedModel, bucket: Bucket, rows: int) -> None:
    """Run so many sequences of padding in a bucket.

    The first request is then not slow, and a bad program is found before it.
    """
    item = [padding_tensor(spec, bucket.length) for spec in model.manifest.inputs]
    lengths = [bucket.length] * rows
    model.run_plan(single_bucket_plan(bucket, lengths, model.manifest.kind), [item] * rows, lengths)


def planner_from_manifest(manifest: Manifest, table: tuple[int, ...] | None = None) -> Planner:
    """Make the planner for an archive's programs and their measured costs; `table`: by `load_bucket_selector`."""
    shapes = supported_shapes(manifest)
    padding = {cost.bucket: cost.milliseconds for cost in manifest.padding_costs}
    measured = CostModel(padding) if padding else measured_cost(manifest, manifest.kind)
    return make_planner(
        manifest.kind,
        shapes,
        measured or CostModel.proportional(shapes),
        longest=manifest.longest,
        head_cost=measured_cost(manifest, "head"),
        table=table,
    )


def device_of(manifest: Manifest) -> str | None:
    """Return the name of the GPU that runs the programs here; None if there is none."""
    return get_backend(manifest.backend).device_name(manifest.device)


def supported_shapes(manifest: Manifest) -> Shapes:
    """Return the shapes that the programs can run."""
    if manifest.shapes == "any":
        return DynamicShape(manifest.grid.batches[-1], manifest.longest)
    return manifest.grid


def measured_cost(manifest: Manifest, role: ProgramRole) -> CostModel | None:
    """Return the measured costs of a role's programs. None if there are none, or none yet (while packaging)."""
    measured = {cost.bucket: cost.milliseconds for cost in manifest.costs if cost.part == role}
    return CostModel(measured) if measured else None


def _load_programs(
    directory: Path, manifest: Manifest, threads: int, weights: Weights
) -> dict[ProgramRole, dict[Bucket | None, Program]]:
    backend = get_backend(manifest.backend)
    if backend.shares_device:
        programs = _load_together(backend, directory, manifest, threads, weights)
    else:
        programs = {
            (one.part, one.bucket): load_compiled(
                backend.load, directory / one.directory, weights, manifest.host, threads
            )
            for one in manifest.variants
        }
    loaded: dict[ProgramRole, dict[Bucket | None, Program]] = {}
    for (role, bucket), program in programs.items():
        loaded.setdefault(role, {})[bucket] = program
    return loaded


def _load_together(
    backend: Backend, directory: Path, manifest: Manifest, threads: int, weights: Weights
) -> Mapping[tuple[ProgramRole, Bucket | None], Program]:
    set_torch_threads(threads)
    directories = {(variant.part, variant.bucket): directory / variant.directory for variant in manifest.variants}
    rehearsals = [one for variant in manifest.variants for one in _rehearsals(manifest, variant)]
    if any(map(is_partitioned, directories.values())):
        return load_sharing_device(backend, directories, weights, manifest.device, threads, rehearsals)
    return backend.load_together(directories, weights, manifest.device, rehearsals)


def _rehearsals(manifest: Manifest, variant: Variant) -> Iterator[Rehearsal[tuple[ProgramRole, Optional[Bucket]]]]:
    """Yield one call of a program in each bucket that it serves."""
    key = (variant.part, variant.bucket)

    def call(bucket: Bucket, programs: Mapping[tuple[ProgramRole, Optional[Bucket]], Program]) -> object:
        return programs[key](example_inputs(manifest, variant.part, bucket))

    for bucket in role_buckets(variant.part, manifest.grid) if variant.bucket is None else (variant.bucket,):
        yield Rehearsal(bucket, partial(call, bucket))


def example_inputs(
    manifest: Manifest, part: ProgramRole, bucket: Bucket, *, padded: bool = False
) -> list[torch.Tensor]:
    """Return inputs of a bucket; `padded`: one row has all timesteps, the others have the fewest."""
    specs = [spec for spec in manifest.inputs if part in ("sequence", "chunk") or spec.time_dim is None]
    tensors = [padding_tensor(spec, bucket.length, bucket.batch) for spec in specs]
    if manifest.takes_lengths:
        others = min(manifest.shortest, bucket.length) if padded else bucket.length
        tensors.append(lengths_tensor([bucket.length, *[others] * (bucket.batch - 1)], bucket))
    if part in ("chunk", "head"):
        tensors += [padding_tensor(value.spec, bucket.length, bucket.batch) for value in manifest.carried]
    return tensors
