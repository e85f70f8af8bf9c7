"""Base class of an engine. A third party adds one with an entry point in `torchserve_neuron_lstm.backends`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

import torch

from ..bucketing.shapes import Bucket

Tensors = Sequence[torch.Tensor]
Weights = Mapping[str, torch.Tensor]
"""The model's state dict, plus the constants that lowering lifted out of its code."""

Precision = Literal["float32", "bfloat16", "float16", "int8"]
"""Precision of a program's computation. Its inputs, outputs and carried values keep their own dtypes."""

CompilerOption = Literal["compiler_workdir", "compiler_args", "compiler_python"]
"""YAML keys that a compiler may support."""


@dataclass(frozen=True)
class CompileSettings:
    """Settings of one compilation. An engine is never given settings that it does not support."""

    precision: Precision = "float32"
    workdir: Path | None = None
    """Existing directory, used by this program alone, in which the compiler leaves its intermediate files."""
    args: tuple[str, ...] = ()
    """Arguments for the compiler's command line."""
    python: Path | None = None
    """Python interpreter that has the compiler; None: this one."""


DEFAULTS = CompileSettings()

LoadedProgram = Callable[[Tensors], Tensors]
"""Loaded program: a function from flat inputs to flat outputs.

Inputs are the declared ones in order, then lengths[B] int64 if the program takes them. All tensors are contiguous, on
the CPU, and of exactly the bucket's shapes. The caller owns the outputs: no later call changes them.

It may have two other functions as attributes:

`chain(buckets, calls, carried)`, of a program of several shapes, runs several calls in sequence, faster than one by
one, and returns the outputs of each. `calls` holds the inputs of each call without its carried inputs, which come last.
The first call takes `carried`. Each later call takes the last `len(carried)` outputs of the call before it, cut to the
first rows: as many as its own bucket has.

`wake()` wakes threads that sleep when no calls come: a call follows soon. It costs little if they are awake.
"""


@dataclass(frozen=True)
class Requirement:
    """A distribution that the serving host must have, e.g. ("onnxruntime", "onnxruntime", "1.31.1")."""

    distribution: str
    module: str
    version: str


class LoadError(RuntimeError):
    """This host cannot run the program. The message names what was packaged, what is here, and what to do."""


class CompileError(RuntimeError):
    """The engine does not support the program or the shape. The message names which, and what to do."""


Key = TypeVar("Key", bound=Hashable)
"""Name of a program among those of an archive."""


@dataclass(frozen=True)
class Rehearsal(Generic[Key]):
    """Calls of an archive's programs in one bucket, as requests will make them."""

    bucket: Bucket
    run: Callable[[Mapping[Key, LoadedProgram]], object]
    """Calls some of the given programs with inputs of the bucket."""


class Backend(ABC):
    """One engine; a subclass sets what differs, and its methods raise what is said here. Instances hold no state."""

    name: str
    polymorphic: bool = False
    """True: one compiled program serves every bucket. False: one per bucket."""
    any_shape: bool = False
    """Whether a polymorphic engine runs a new shape as fast as a known one.

    Batches may then be planned in any shapes. False: only in the shapes of the grid, which are warmed up when an
    archive is loaded.
    """

    precisions: tuple[Precision, ...] = ("float32",)
    """Precisions that the engine can compute in."""
    options: tuple[CompilerOption, ...] = ()
    """YAML keys that its compiler supports."""
    inlines_weights: bool = False
    """Whether the weights are inside the programs, which then cannot get other weights."""
    whole_sequences: str | None = None
    """Reason, for people, that it runs no chunks unless `streaming` needs them: it cannot, or would gain nothing."""
    ragged: bool = False
    """Whether each row is computed only up to its own length. The cost of padding is then measured separately."""
    runs_in_forks: bool = False
    """Whether the programs also run in a fork of the process that loaded them, on one thread.

    Those of other engines may wait there without end for threads, which a fork does not inherit.
    """

    pins_torch_minor: bool = False
    """Whether the programs may run only on the minor version of torch that compiled them."""
    core_variables: tuple[str, ...] = ()
    """The variables by which `placement: cores` assigns cores of a device to a process.

    If one is set already, nothing is assigned. Empty: the device has no such cores.
    """

    largest_integer: int | None = None
    """The largest integer of an input that it takes as it is; None: all of int64. What it computes may be larger."""
    shares_device: bool = False
    """Whether the programs of an archive share a device's memory: `load_together` loads them."""

    def unavailable(self) -> str | None:
        """Return why this machine cannot compile for the engine, with what to install; None if it can."""
        return None

    @abstractmethod
    def requirements(self) -> tuple[Requirement, ...]:
        """Return the distributions that the serving host needs, with the versions compiled against."""

    def host(self) -> Mapping[str, str]:
        """Return the kind of machine of the compiled code, e.g. {"machine": "x86_64", "isa": "avx512"}.

        Empty, as here: any.
        """
        return {}

    @abstractmethod
    def compile(
        self,
        program: torch.export.ExportedProgram,
        bucket: Bucket | None,
        directory: Path,
        settings: CompileSettings = DEFAULTS,
    ) -> None:
        """Write the compiled program, without its weights, into an empty `directory`.

        `program` holds the abstract masked operators of `masked.py` and has symbolic batch and time. `bucket` is None
        for a polymorphic engine. Runs in a separate process. If the precision is not float32, the inputs, outputs and
        carried values still have their own dtypes, and `load` must refuse a host that cannot compute in it.

        Raises `CompileError`: the engine does not support this program or these arguments, or this machine cannot
        compute in this precision.
        """

    @abstractmethod
    def load(self, directory: Path, weights: Weights, host: Mapping[str, str], threads: int) -> LoadedProgram:
        """Load a program that `compile` wrote.

        `weights` are shared by all variants: keep them, do not copy them.

        Raises `LoadError`: this host is not of the kind that `host` names, or the file cannot be loaded here.
        """

    def refusal(self, node: torch.fx.Node) -> str | None:
        """Return why the engine does not support this call of an exported program; None if it does.

        Answers without compiling. None, as here, for all: `compile` alone refuses.
        """
        return None

    def estimate_us(self, directory: Path) -> float | None:
        """Return the compiler's estimate of one call on its device in microseconds; None if it has none."""
        return None

    def simulation(self) -> str | None:
        """Return what emulates the device on this host, and why; None for a device, or without one."""
        return None

    def cores(self) -> int | None:
        """Return the number of the device's cores that this process may use; None if it has no such cores.

        `load` uses the first.
        """
        return None

    def load_on(
        self, core: int, directory: Path, weights: Weights, host: Mapping[str, str], threads: int
    ) -> LoadedProgram:
        """Load as `load` does, on the core of this index.

        Raises `LoadError`: as for `load`, or there is no such core.
        """
        raise NotImplementedError

    def core_environment(self, index: int) -> Mapping[str, str]:
        """Return the variables that assign the core of this index to a process; here, the first of `core_variables`."""
        return {self.core_variables[0]: str(index)}

    def device_missing(self) -> str | None:
        """Return why this machine lacks the device that the programs share; None if it has one or needs none."""
        return None

    def device_name(self, device: str | None) -> str | None:
        """Return the name of the device that `load_together` takes, e.g. NVIDIA L4; None if there is none.

        Raises `LoadError`: `device` is the name of none, or this machine has fewer.
        """
        return None

    def load_together(
        self,
        programs: Mapping[Key, Path],
        weights: Weights,
        device: str | None,
        rehearsals: Sequence[Rehearsal[Key]] = (),
    ) -> Mapping[Key, LoadedProgram]:
        """Load the programs of an archive from their directories, ready for the calls of each rehearsal.

        `device` is one such as cuda:1; None: the first. Each rehearsal is run once or not at all, in any order.

        Raises `LoadError`: as for `load`, or there is no such device, or its memory does not suffice.
        """
        raise NotImplementedError


def precision_of(engine: Backend, wanted: Precision) -> Precision:
    """Return the precision of an engine if `wanted` is configured: `wanted`, else the engine's first.

    Some engines support only float32, whose outputs are within every tolerance of a lower precision. An engine with
    neither `wanted` nor float32 must not be tried.
    """
    return wanted if wanted in engine.precisions else engine.precisions[0]
