"""An unpacked archive to callables. Packaging verifies through this very class: what is verified is what serves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import torch

from ...backends.interface import Chaining, Weights
from ...backends.interface import LoadedProgram as Program
from ...backends.partitioning.partitioned_program import load_compiled
from ...backends.registry import get_backend
from ...backends.weights import read_weights
from ...bucketing.cost import CostModel
from ...bucketing.execute import Pad, execute
from ...bucketing.execute_chunks import ChunkSignature, ResumedState, RunChain, execute_chunks, resume_chunks
from ...bucketing.padding import pad, torch_dtype
from ...bucketing.plan import Plan, single_bucket_plan
from ...bucketing.planner import Planner, make_planner
from ...bucketing.shapes import Bucket, DynamicShape, ProgramRole, Shapes, TensorSpec
from ...config.manifest import Manifest, read_manifest, verify_files
from .host import available_cores, check_requirements
from .user_code import selected_lengths

Programs = Mapping[Bucket | None, Program]
"""The loaded programs of one part, by the bucket that each serves; None serves every one."""


@dataclass(frozen=True)
class LoadedArchive:
    """All loaded programs of one archive, sharing one copy of the weights."""

    manifest: Manifest
    planner: Planner
    threads: int
    """That the programs were loaded for."""
    programs: Mapping[ProgramRole, Programs]

    @property
    def cost(self) -> CostModel:
        """What plans go by: measured calls or, where it is known by itself, what padding costs."""
        return self.planner.cost

    @cached_property
    def pieces(self) -> ChunkSignature:
        """The layouts of a model that runs in pieces of time."""
        return ChunkSignature(self.manifest.inputs, self.manifest.outputs, self.manifest.carried)

    def run(self, part: ProgramRole, bucket: Bucket, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """One call of a bucket's program: padded inputs (then lengths[B] where it takes them) to padded outputs."""
        programs = self.programs[part]
        return (programs.get(bucket) or programs[None])(tensors)

    @cached_property
    def chain(self) -> RunChain | None:
        """Pieces in a row, where the engine has a way of its own for it. Kept: asking takes 20 us."""
        program = self.programs["chunk"].get(None)
        return program.chain if isinstance(program, Chaining) else None

    def plan(self, lengths: Sequence[int]) -> Plan:
        """The cheapest runs for sequences of these lengths.

        Raises:
            SequenceTooLong, LengthNotAccepted: a length that this archive does not serve.
        """
        return self.planner.plan(lengths)

    def answer(
        self,
        plan: Plan,
        requests: Sequence[Sequence[torch.Tensor]],
        lengths: Sequence[int],
        pad: Pad = pad,
    ) -> list[tuple[torch.Tensor, ...]]:
        """The answers to sequences, in their order, by a plan for their lengths. They may share memory."""
        facts = self.manifest
        with torch.no_grad():
            if facts.kind == "chunk":
                return execute_chunks(plan, requests, lengths, self.pieces, self.run, pad, self.chain)
            run = partial(self.run, "sequence")
            return execute(plan, requests, lengths, facts.inputs, facts.outputs, facts.takes_lengths, run, pad)

    def resume_plan(
        self, plan: Plan, requests: Sequence[Sequence[torch.Tensor]], lengths: Sequence[int], past: ResumedState
    ) -> tuple[list[tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...]]:
        """The answers to the next piece of each sequence, and what the one after it goes on from.

        Only for a model that runs in pieces of time.
        """
        with torch.no_grad():
            return resume_chunks(plan, requests, lengths, self.pieces, self.run, past, self.chain)


def load_archive(directory: Path, threads: int | None = None) -> LoadedArchive:
    """Load and warm every program of the archive unpacked in `directory`.

    `threads` is what the programs may use each; None: what the manifest says, or else all cores there are.

    Raises:
        RuntimeError: a file is missing or changed, or this host cannot run the archive; says what to do.
    """
    manifest = read_manifest(directory)
    verify_files(directory, manifest)
    check_requirements(manifest.requires, manifest.backend)
    threads = threads or manifest.threads or available_cores()
    variants = LoadedArchive(
        manifest=manifest,
        planner=planner_from_manifest(manifest, selected_lengths(manifest, directory)),
        threads=threads,
        programs=_load_programs(directory, manifest, threads),
    )
    for bucket in manifest.grid.buckets:
        _warm_up(variants, bucket)
    return variants


def planner_from_manifest(manifest: Manifest, table: tuple[int, ...] | None = None) -> Planner:
    """The planner for an archive's programs and their measured costs; `table`: by `selected_lengths`."""
    shapes = supported_shapes(manifest)
    head = measured_cost(manifest, "head")
    return make_planner(
        manifest.kind,
        shapes,
        _planning_cost(manifest) or CostModel.proportional(shapes),
        padded=manifest.padding == "masked",
        longest=manifest.longest,
        head_cost=head,
        table=table,
    )


def supported_shapes(manifest: Manifest) -> Shapes:
    """What the programs can be asked to run."""
    if manifest.shapes == "any":
        return DynamicShape(manifest.grid.batches[-1], manifest.longest)
    return manifest.grid


def measured_cost(manifest: Manifest, part: ProgramRole) -> CostModel | None:
    """The measured costs of a part; None while packaging has yet to measure them, or where there is no such part."""
    measured = {cost.bucket: cost.milliseconds for cost in manifest.costs if cost.part == part}
    return CostModel(measured) if measured else None


def _planning_cost(manifest: Manifest) -> CostModel | None:
    """What plans are made by: the cost of padding, where that is known by itself, else of whole calls."""
    padding = {cost.bucket: cost.milliseconds for cost in manifest.padding_costs}
    return CostModel(padding) if padding else measured_cost(manifest, manifest.kind)


def _warm_up(variants: LoadedArchive, bucket: Bucket) -> None:
    """Fill a bucket with zeros once: the first request shall be neither slow nor the one that finds a bad program."""
    blank = [_blank(spec, bucket.length) for spec in variants.manifest.inputs]
    lengths = [bucket.length] * bucket.batch
    variants.answer(single_bucket_plan(bucket, lengths, variants.manifest.kind), [blank] * bucket.batch, lengths)


def _blank(spec: TensorSpec, length: int) -> torch.Tensor:
    sizes = [length if size == "time" else size for size in spec.item_shape]
    return torch.zeros([int(size) for size in sizes], dtype=torch_dtype(spec))


def _load_programs(
    directory: Path, manifest: Manifest, threads: int
) -> dict[ProgramRole, dict[Bucket | None, Program]]:
    backend = get_backend(manifest.backend)
    weights = _load_weights(directory, manifest)
    loaded: dict[ProgramRole, dict[Bucket | None, Program]] = {}
    for variant in manifest.variants:
        place = directory / variant.directory
        program = load_compiled(backend, place, weights, manifest.host, threads)
        loaded.setdefault(variant.part, {})[variant.bucket] = program
    return loaded


def _load_weights(directory: Path, manifest: Manifest) -> Weights:
    files = [file for file in (manifest.weights, manifest.constants) if file is not None]
    return {name: tensor for file in files for name, tensor in read_weights(directory / file).items()}
