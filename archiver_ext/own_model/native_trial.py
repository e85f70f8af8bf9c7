"""Trial of a model whose recurrent layers the native engine's library computes."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path

import torch

from ...backends.differences import difference
from ...backends.interface import CompileError
from ...backends.native.build import build as build_libraries
from ...backends.registry import get_backend
from ...config.engine_choice import AUTO
from ...config.own_model import OwnModel
from ...config.schema import ServingConfig
from ...handlers.runtime.measurement import measure
from ...handlers.runtime.native_layers import native_layers
from ...handlers.runtime.own_model import OwnProgram
from ..archive import layout
from ..evaluation.manifest_builder import BuildInput
from .described import make_program
from .trial import EagerFailure, Trial, answer


def tolerance_of(config: ServingConfig) -> tuple[float, float]:
    """Return the largest difference from eager mode, absolute and relative."""
    return config.tolerance.atol, config.tolerance.rtol


def with_native_layers(
    build: BuildInput, description: OwnModel, trial: Trial, constants: Mapping[str, torch.Tensor]
) -> tuple[OwnModel, Trial] | None:
    """Write the library into the tree, and return the description and the answers with it.

    None, and no library, if it has no layer to compute, cannot be compiled here, or answers a request differently by
    more than the tolerance; where `backend` does not name it, also if it is slower than torch.
    """
    plain = make_program(build, description, constants, trial.rewritten)
    is_asked = build.config.engine in (AUTO, "native") and not trial.draws and not trial.rewritten
    libraries = build.tree / layout.RECURRENCES
    if not is_asked or not any(native_layers(plain.model)) or not _built(libraries):
        return None
    described = replace(description, recurrences=layout.RECURRENCES)
    program = make_program(build, described, constants, ())
    native = _answered(program, description.name, trial, build.config)
    if native is None or (build.config.engine == AUTO and not _is_faster(program, plain, trial)):
        shutil.rmtree(libraries)
        return None
    return described, native


def _built(libraries: Path) -> bool:
    """Compile the library into a folder. Whether that is possible here."""
    if get_backend("native").unavailable() is not None:
        return False
    libraries.mkdir(parents=True)
    try:
        build_libraries(libraries)
    except CompileError:
        shutil.rmtree(libraries)
        return False
    return True


def _answered(program: OwnProgram, name: str, trial: Trial, config: ServingConfig) -> Trial | None:
    """Answer the requests of a trial again; None if an answer differs by more than the tolerance."""
    try:
        answers = [answer(program, request, name, config) for request in trial.requests]
    except EagerFailure:
        return None
    if any([place for place, _ in a] != [place for place, _ in b] for a, b in zip(answers, trial.answers, strict=True)):
        return None
    differences = [
        difference(ours, eager, tolerance_of(config)) if ours.dtype == eager.dtype else (inf, inf)
        for a, b in zip(answers, trial.answers, strict=True)
        for (_, ours), (_, eager) in zip(a, b, strict=True)
    ]
    if any(ratio > 1 for _, ratio in differences):
        return None
    return replace(trial, answers=tuple(answers), error=max(error for error, _ in differences))


def _is_faster(program: OwnProgram, plain: OwnProgram, trial: Trial) -> bool:
    """Whether all requests together take less time with the library than by torch."""
    turns = measure({one: partial(_run_all, one, trial) for one in (program, plain)})
    return min(turns[program]) < min(turns[plain])


def _run_all(program: OwnProgram, trial: Trial) -> None:
    for request in trial.requests:
        program.outputs([tensor.clone() for tensor in request.tensors], request.length)
