"""What an engine must offer. A third party adds one with an entry point in `torchserve_neuron_lstm.backends`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, get_args, runtime_checkable

import torch

from ..bucketing.grid import Bucket

Weights = Mapping[str, torch.Tensor]
"""The model's own state dict, plus the constants that lowering lifted out of its code."""

Precision = Literal["float32", "bfloat16"]
"""What a program computes in. Its inputs, outputs and carried values keep their own dtypes."""

PRECISIONS: tuple[Precision, ...] = get_args(Precision)

Run = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
"""A loaded program: flat inputs (the declared ones in order, then lengths[B] int64 where the program takes them)
to flat outputs, all contiguous CPU tensors of exactly the bucket's shapes. The outputs are the caller's: no later call
changes them."""


@runtime_checkable
class Chaining(Protocol):
    """A loaded program for pieces of every shape that runs several of them in a row faster than one by one."""

    def __call__(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """One call."""

    def chain(
        self, buckets: Sequence[Bucket], calls: Sequence[list[torch.Tensor]], carried: list[torch.Tensor]
    ) -> Sequence[Sequence[torch.Tensor]]:
        """Several calls. `calls` has the inputs of each but for the last ones, which are `carried` for the first.

        Each of the others goes on with the last outputs of the one before it, as many as `carried` has, of which it
        takes the first rows: as many as its bucket has.
        """


@dataclass(frozen=True)
class Requirement:
    """A distribution the serving host must have, e.g. ("onnxruntime", "onnxruntime", "1.31.1")."""

    distribution: str
    module: str
    version: str


class CannotLoad(RuntimeError):
    """This host cannot run the program: says what was packaged, what is here, and what to do."""


class CannotCompile(RuntimeError):
    """The engine refuses the program or the shape: says which, and what to do."""


class Backend(Protocol):
    """One engine. Instances hold no state."""

    name: str
    polymorphic: bool
    """True: one compiled program serves every bucket. False: one per bucket."""
    any_shape: bool
    """Whether a polymorphic engine runs a shape for the first time as fast as ever, so that batches may be planned in
    whatever shapes are best. False: in those of the grid alone, which are warmed up when an archive is loaded."""

    def unavailable(self) -> str | None:
        """Why this machine cannot compile for the engine, with what to install; None where it can."""

    def requirements(self) -> tuple[Requirement, ...]:
        """What the serving host needs beside the standard library, with the versions compiled against."""

    def host(self) -> Mapping[str, str]:
        """The kind of machine the compiled code is for (e.g. {"machine": "x86_64", "isa": "avx512"}); empty: any."""

    def compile(self, program: torch.export.ExportedProgram, bucket: Bucket | None, directory: Path) -> None:
        """Write the compiled program, without its weights, into an empty `directory`.

        `program` holds the abstract masked operators of `masked.py` and symbolic batch and time. `bucket` is None
        for a polymorphic engine. Runs in a process of its own. The program computes in float32.

        Raises:
            CannotCompile: the engine does not take this program.
        """

    def load(self, directory: Path, weights: Weights, host: Mapping[str, str], threads: int) -> Run:
        """Load what `compile` wrote. `weights` are shared by all variants: keep them, do not copy them.

        Raises:
            CannotLoad: this host is not the kind `host` names, or the file cannot be loaded here.
        """


@runtime_checkable
class LowPrecision(Backend, Protocol):
    """An engine that computes in other precisions than float32 too."""

    precisions: tuple[Precision, ...]
    """Those beside float32."""

    def compile_in(
        self, precision: Precision, program: torch.export.ExportedProgram, bucket: Bucket | None, directory: Path
    ) -> None:
        """Like `compile`, in one of `precisions`. `load` must refuse a host that cannot compute in it.

        Raises:
            CannotCompile: the engine does not take this program, or this machine cannot compute in this precision.
        """


def precision_of(engine: Backend, wanted: Precision) -> Precision:
    """What an engine computes in where `wanted` is asked for: that, or float32 where it knows nothing else."""
    return wanted if isinstance(engine, LowPrecision) and wanted in engine.precisions else "float32"
