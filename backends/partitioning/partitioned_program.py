"""Loading of partitioned programs: segments of an engine and of the CPU, run in order.

Values go from one segment to the next by name. All segments read the one copy of the weights. This is the only file of
the folder that a serving host needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from ..interface import Backend, Key, LoadedProgram, Rehearsal, Weights
from ..signature import Signature, read_program_file, read_signature

SEGMENTS = "segments.json"

Target = Literal["device", "cpu"]


@dataclass(frozen=True)
class SegmentEntry:
    """A segment in `segments.json`."""

    place: Target
    takes: tuple[str, ...]
    """Names of its input values, in order: inputs of the whole program, or outputs of earlier segments."""
    gives: tuple[str, ...]
    """Names of the values that are its outputs, in order."""
    operators: tuple[str, ...]
    """Names of its operators in torch, e.g. ("aten::linear", "aten::lstm")."""


@dataclass(frozen=True)
class SegmentList:
    """Content of `segments.json`: the names of the program's inputs and outputs, in order, and its segments."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    segments: tuple[SegmentEntry, ...]


Load = Callable[[Path, Weights, Mapping[str, str], int], LoadedProgram]
"""`Backend.load`, or a function with its arguments."""


def load_compiled(
    load: Load, directory: Path, weights: Weights, host: Mapping[str, str], threads: int
) -> LoadedProgram:
    """Load a program of the engine that `load` is of, partitioned or not.

    Raises `LoadError`: it cannot be loaded on this host, a file is damaged, or the weights do not match.
    """
    if not is_partitioned(directory):
        return load(directory, weights, host, threads)
    folders = device_folders(directory)
    on_device = {index: load(folder, weights, host, threads) for index, folder in folders.items()}
    return _load_on_cpu(directory, weights, threads)(on_device)  # the CPU's come last: they set torch's threads


def load_sharing_device(
    engine: Backend,
    directories: Mapping[Key, Path],
    weights: Weights,
    device: str | None,
    threads: int,
    rehearsals: Sequence[Rehearsal[Key]] = (),
) -> Mapping[Key, LoadedProgram]:
    """Load partitioned programs whose segments share a device's memory, ready for rehearsals.

    Raises `LoadError`: as for `Backend.load_together`, or a file is damaged.
    """
    join = {key: _load_on_cpu(directory, weights, threads) for key, directory in directories.items()}
    folders = {key: device_folders(directory) for key, directory in directories.items()}

    def joined(segments: Mapping[tuple[Key, int], LoadedProgram]) -> Mapping[Key, LoadedProgram]:
        return {key: one({index: segments[key, index] for index in folders[key]}) for key, one in join.items()}

    def of_segments(rehearsal: Rehearsal[Key]) -> Rehearsal[tuple[Key, int]]:
        return Rehearsal(rehearsal.bucket, lambda segments: rehearsal.run(joined(segments)))

    stored = {(key, index): folder for key, own in folders.items() for index, folder in own.items()}
    return joined(engine.load_together(stored, weights, device, [of_segments(one) for one in rehearsals]))


def device_folders(directory: Path) -> dict[int, Path]:
    """The directories of the engine's segments, by their index."""
    places = [segment.place for segment in read_segments(directory).segments]
    return {index: directory / segment_directory(index, place) for index, place in enumerate(places) if place != "cpu"}


def _load_on_cpu(
    directory: Path, weights: Weights, threads: int
) -> Callable[[Mapping[int, LoadedProgram]], LoadedProgram]:
    """Load the CPU's segments; returns a function that joins them with the engine's, by their index."""
    signature, plan = read_signature(directory), read_segments(directory)
    on_cpu = {
        index: _load_segment(directory / segment_directory(index, "cpu"), weights, threads)
        for index, segment in enumerate(plan.segments)
        if segment.place == "cpu"
    }

    def joined(on_device: Mapping[int, LoadedProgram]) -> LoadedProgram:
        runs = {**on_cpu, **on_device}
        return _partitioned_program(signature, plan, [runs[index] for index in range(len(runs))])

    return joined


def is_partitioned(directory: Path) -> bool:
    """Whether a program is divided between its engine and the CPU."""
    return (directory / SEGMENTS).is_file()


def segment_directory(index: int, place: Target) -> str:
    """Return the name of a segment's directory.

    >>> segment_directory(0, "device")
    '0_device'
    """
    return f"{index}_{place}"


def read_segments(directory: Path) -> SegmentList:
    """Read the list of segments of a partitioned program. Raises `LoadError`: it is damaged."""
    return read_program_file(SegmentList, directory / SEGMENTS)


def _load_segment(directory: Path, weights: Weights, threads: int) -> LoadedProgram:
    if (directory / "compiled.json").is_file():  # of AWS Neuron, which a torch before `LOWEST_TORCH` reads
        from ..aws_neuron.device import load_on_cpu, read_artifact

        program, _ = read_artifact(directory)
        return load_on_cpu(program, weights, threads)
    from ..eager import Eager

    return Eager().load(directory, weights, {}, threads)


def _partitioned_program(signature: Signature, plan: SegmentList, runs: Sequence[LoadedProgram]) -> LoadedProgram:
    last_reader = {name: index for index, segment in enumerate(plan.segments) for name in segment.takes}
    outputs = {*plan.outputs}

    def run(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        signature.check_inputs(inputs)
        values = dict(zip(plan.inputs, inputs))
        for index, (segment, call) in enumerate(zip(plan.segments, runs)):
            values.update(zip(segment.gives, call([values[name].contiguous() for name in segment.takes])))
            for name in segment.takes:  # large values between two segments are freed after their last reader
                if last_reader[name] == index and name not in outputs:
                    values.pop(name, None)
        return [values[name] for name in plan.outputs]

    return run
