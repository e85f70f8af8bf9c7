"""What an engine must offer. A third party adds one with an entry point in `torchserve_neuron_lstm.backends`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, get_args, runtime_checkable

import torch

from ..bucketing.shapes import Bucket

Weights = Mapping[str, torch.Tensor]
"""The model's own state dict, plus the constants that lowering lifted out of its code."""

Precision = Literal["float32", "bfloat16"]
"""What a program computes in. Its inputs, outputs and carried values keep their own dtypes."""

PRECISIONS: tuple[Precision, ...] = get_args(Precision)

CompilerOption = Literal["compiler_workdir", "compiler_args", "compiler_python"]
"""What the YAML can say to a compiler itself, by its keys there."""


@dataclass(frozen=True)
class CompileSettings:
    """What is asked of a compiler beside the program and its shape. No engine is given what it does not take."""

    precision: Precision = "float32"
    workdir: Path | None = None
    """An existing directory of this program's own, in which the compiler leaves what people may want to look at."""
    args: tuple[str, ...] = ()
    """Arguments for the compiler's command line."""
    python: Path | None = None
    """The interpreter in which the compiler lives, where that is not this one."""


DEFAULTS = CompileSettings()

LoadedProgram = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
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


class LoadError(RuntimeError):
    """This host cannot run the program: says what was packaged, what is here, and what to do."""


class CompileError(RuntimeError):
    """The engine refuses the program or the shape: says which, and what to do."""


class Backend(Protocol):
    """One engine. Instances hold no state."""

    name: str
    polymorphic: bool
    """True: one compiled program serves every bucket. False: one per bucket."""
    any_shape: bool
    """Whether a polymorphic engine runs a shape for the first time as fast as ever, so that batches may be planned in
    whatever shapes are best. False: in those of the grid alone, which are warmed up when an archive is loaded."""

    precisions: tuple[Precision, ...]
    """What it can compute in."""
    options: tuple[CompilerOption, ...]
    """The keys of the YAML that its compiler takes."""

    def unavailable(self) -> str | None:
        """Why this machine cannot compile for the engine, with what to install; None where it can."""

    def requirements(self) -> tuple[Requirement, ...]:
        """What the serving host needs beside the standard library, with the versions compiled against."""

    def host(self) -> Mapping[str, str]:
        """The kind of machine the compiled code is for (e.g. {"machine": "x86_64", "isa": "avx512"}); empty: any."""

    def compile(
        self,
        program: torch.export.ExportedProgram,
        bucket: Bucket | None,
        directory: Path,
        settings: CompileSettings = DEFAULTS,
    ) -> None:
        """Write the compiled program, without its weights, into an empty `directory`.

        `program` holds the abstract masked operators of `masked.py` and symbolic batch and time. `bucket` is None
        for a polymorphic engine. Runs in a process of its own. Where the program computes in another precision than
        float32, its inputs, outputs and carried values still have their own dtypes, and `load` must refuse a host
        that cannot compute in it.

        Raises:
            CannotCompile: the engine does not take this program or these arguments, or this machine cannot compute in
                this precision.
        """

    def load(self, directory: Path, weights: Weights, host: Mapping[str, str], threads: int) -> LoadedProgram:
        """Load what `compile` wrote. `weights` are shared by all variants: keep them, do not copy them.

        Raises:
            CannotLoad: this host is not the kind `host` names, or the file cannot be loaded here.
        """


@runtime_checkable
class Estimating(Backend, Protocol):
    """An engine whose compiler knows how long a program will take on its device."""

    def estimate_us(self, directory: Path) -> float | None:
        """Microseconds of one call of what `compile` wrote, by the compiler's own count; None where it has none."""


@runtime_checkable
class Selective(Backend, Protocol):
    """An engine that can say operator by operator what it takes, without compiling."""

    def refusal(self, node: torch.fx.Node) -> str | None:
        """Why it cannot take this call of an exported program; None where it can."""


@runtime_checkable
class Inlining(Backend, Protocol):
    """An engine that may compile the weights into its programs, so that other weights need other programs."""

    inlines_weights: bool


@runtime_checkable
class Placing(Backend, Protocol):
    """An engine with several cores of its own; `load` takes the first."""

    def cores(self) -> int:
        """How many this process may use."""

    def load_on(
        self, core: int, directory: Path, weights: Weights, host: Mapping[str, str], threads: int
    ) -> LoadedProgram:
        """Like `load`, on one of them, counted from 0.

        Raises:
            CannotLoad: as `load`, or there is no such core.
        """


@runtime_checkable
class WholeSequences(Backend, Protocol):
    """An engine that runs no pieces of time, unless streams ask for them: it cannot, or would gain nothing."""

    whole_sequences: str
    """Why, for people."""


@runtime_checkable
class Ragged(Backend, Protocol):
    """An engine that computes each row only up to its own length, so that what padding costs is measured by itself."""

    ragged: bool


@runtime_checkable
class Simulating(Backend, Protocol):
    """An engine whose programs run on something slower where its device is not there."""

    def simulation(self) -> str | None:
        """What stands in for the device on this host, and why; None where the device is there."""


def precision_of(engine: Backend, wanted: Precision) -> Precision:
    """What an engine computes in where `wanted` is asked for: that, else what it prefers.

    Some know float32 alone, whose answers are within every tolerance that bfloat16's are. An engine that knows no
    float32 must not be tried where float32 is asked for.
    """
    return wanted if wanted in engine.precisions else engine.precisions[0]


@runtime_checkable
class TorchPinned(Backend, Protocol):
    """An engine whose programs may run only on the minor version of torch that compiled them."""

    pins_torch_minor: bool


@runtime_checkable
class CoreAssigning(Backend, Protocol):
    """An engine whose device cores are assigned to a process by environment variables, for `placement: cores`."""

    core_variables: tuple[str, ...]
    """The variables that set a process's cores. If one is set already, nothing is assigned."""

    def core_environment(self, index: int) -> Mapping[str, str]:
        """Return the variables that assign the core of this index to a process."""
