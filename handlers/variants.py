"""An unpacked archive to callables. Packaging verifies through this very class: what is verified is what serves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..backends.interface import Run as Program
from ..backends.interface import Weights
from ..backends.registry import get_backend
from ..backends.weights import read_weights
from ..bucketing.cost import CostModel
from ..bucketing.execute import execute
from ..bucketing.grid import Bucket
from ..bucketing.padding import torch_dtype
from ..bucketing.plan import Plan, Run
from ..bucketing.planner import Planner, planner_for
from ..bucketing.spec import TensorSpec
from ..config.manifest import Manifest, read_manifest, verify_files
from .cores import available_cores
from .requirements import check_requirements


@dataclass(frozen=True)
class Variants:
    """All loaded variants of one archive, sharing one copy of the weights."""

    manifest: Manifest
    planner: Planner
    threads: int
    """That the programs were loaded for."""
    runs: Mapping[Bucket, Program]
    """Of every bucket of the grid."""

    @property
    def cost(self) -> CostModel:
        """What each bucket was measured to cost."""
        return self.planner.cost

    def run(self, bucket: Bucket, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """One call of a bucket's program: padded inputs (then lengths[B] where it takes them) to padded outputs."""
        with torch.no_grad():
            return list(self.runs[bucket](tensors))

    def plan(self, lengths: Sequence[int]) -> Plan:
        """The cheapest runs for sequences of these lengths.

        Raises:
            SequenceTooLong, LengthNotAccepted: a length that this archive does not serve.
        """
        return self.planner.plan(lengths)

    def answer(
        self, plan: Plan, requests: Sequence[Sequence[torch.Tensor]], lengths: Sequence[int]
    ) -> list[tuple[torch.Tensor, ...]]:
        """The answers to sequences, in their order, by a plan for their lengths."""
        facts = self.manifest
        return execute(plan, requests, lengths, facts.inputs, facts.outputs, facts.takes_lengths, self.run)


def load_variants(directory: Path, threads: int | None = None) -> Variants:
    """Load and warm every variant of the archive unpacked in `directory`.

    `threads` is what the programs may use each; None: what the manifest says, or else all cores there are.

    Raises:
        RuntimeError: a file is missing or changed, or this host cannot run the archive; says what to do.
    """
    manifest = read_manifest(directory)
    verify_files(directory, manifest)
    check_requirements(manifest.requires, manifest.backend)
    threads = threads or manifest.threads or available_cores()
    variants = Variants(
        manifest=manifest,
        planner=planner_for("sequence", manifest.grid, _cost(manifest), padded=manifest.padding == "masked"),
        threads=threads,
        runs=_load_runs(directory, manifest, threads),
    )
    for bucket in manifest.grid.buckets:
        _warm_up(variants, bucket)
    return variants


def _warm_up(variants: Variants, bucket: Bucket) -> None:
    """Fill a bucket with zeros once: the first request shall be neither slow nor the one that finds a bad program."""
    blank = [_blank(spec, bucket.length) for spec in variants.manifest.inputs]
    plan = Plan((Run(bucket, tuple(range(bucket.batch))),))
    variants.answer(plan, [blank] * bucket.batch, [bucket.length] * bucket.batch)


def _blank(spec: TensorSpec, length: int) -> torch.Tensor:
    sizes = [length if size == "time" else size for size in spec.item_shape]
    return torch.zeros([int(size) for size in sizes], dtype=torch_dtype(spec))


def _load_runs(directory: Path, manifest: Manifest, threads: int) -> dict[Bucket, Program]:
    """A program for each bucket; buckets that share a folder share the program."""
    backend = get_backend(manifest.backend)
    weights = _load_weights(directory, manifest)
    folders = {variant.bucket: variant.directory for variant in manifest.variants}
    loaded = {
        folder: backend.load(directory / folder, weights, manifest.host, threads)
        for folder in dict.fromkeys(folders.values())
    }
    return {bucket: loaded[folders[bucket]] for bucket in manifest.grid.buckets}


def _load_weights(directory: Path, manifest: Manifest) -> Weights:
    files = [file for file in (manifest.weights, manifest.constants) if file is not None]
    return {name: tensor for file in files for name, tensor in read_weights(directory / file).items()}


def _cost(manifest: Manifest) -> CostModel:
    """The measured costs; a stand-in while packaging has yet to measure them."""
    measured = {variant.bucket: variant.milliseconds for variant in manifest.variants}
    if all(milliseconds > 0 for milliseconds in measured.values()):
        return CostModel(measured)
    return CostModel.proportional(manifest.grid)
