"""Files of the archive's tree: an engine's programs, serving code, constants and manifest."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch

from ...backends.interface import Backend
from ...backends.partitioning.partitioned_program import SEGMENTS
from ...backends.subprocesses import PACKAGE
from ...backends.torch_files import torch_file
from ...config.manifest_writer import write_manifest
from ..archive import layout
from ..archive.carried_files import carried_files
from .candidate import CandidateResult
from .manifest_builder import BuildInput, build_manifest, with_costs, with_errors


def write_constants(tree: Path, constants: Mapping[str, torch.Tensor]) -> None:
    """Write the tensors that lowering lifted out of the model's code, if there are any."""
    if constants:
        path = tree / layout.CONSTANTS
        path.parent.mkdir(exist_ok=True)
        with torch_file(path) as file:
            torch.save(dict(constants), file)


def install_engine(build: BuildInput, engine: Backend, compiled: Path) -> None:
    """Move an engine's programs from `compiled` into the tree, and copy the serving files beside them."""
    target = build.tree / layout.PROGRAMS / engine.name
    target.parent.mkdir(exist_ok=True)
    (compiled / layout.PROGRAMS / engine.name).rename(target)
    streaming = build.config.streaming
    files = carried_files(
        engine.name,
        cpu_segments=any(target.rglob(SEGMENTS)),
        store=None if streaming is None else streaming.store,
    )
    layout.copy_serving_files(build.tree, layout.package_directory(), files)


def remove_engine(tree: Path, engine: Backend, compiled: Path) -> None:
    """Undo `install_engine`."""
    (tree / layout.PROGRAMS / engine.name).rename(compiled / layout.PROGRAMS / engine.name)
    try:
        shutil.rmtree(tree / PACKAGE)
    except OSError as error:  # it names the last part of a path alone
        raise OSError(error.errno, error.strerror, str(tree / PACKAGE)) from error


def write_final_manifest(build: BuildInput, result: CandidateResult) -> None:
    """Write variants.json with the measurements of the selected candidate."""
    manifest = with_costs(build_manifest(build, result.candidate), result.costs, result.padding, result.measurement)
    write_manifest(with_errors(manifest, result.verified), build.tree)
