"""The steps from a model that is not lowered to an archive in which its own code answers."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path

import torch

from ...backends import target_machine
from ...backends.differences import difference
from ...backends.interface import CompileError
from ...backends.native.build import build as build_libraries
from ...backends.registry import get_backend
from ...backends.versions import torch_version
from ...bucketing.shapes import Bucket, BucketGrid
from ...config.engine_choice import AUTO
from ...config.manifest import CostMeasurement, ErrorTolerance, Manifest, MeasuredError, RequiredPackage
from ...config.manifest_writer import write_manifest
from ...config.own_model import OwnModel
from ...config.schema import ServingConfig
from ...handlers.runtime.loader import LoadedArchive, load_archive
from ...handlers.runtime.measurement import Effort, measure, spread
from ...handlers.runtime.model_outputs import row_of
from ...handlers.runtime.native_layers import native_layers
from ...handlers.runtime.own_model import OwnProgram
from ...lowering.eager_call import shortest_length
from ...lowering.errors import FailsEagerly, InputsDoNotFit
from ..archive import layout
from ..archive.carried_files import carried_files
from ..errors import PackagingError, refusing
from ..evaluation.lowest_torch import symbol_versions
from ..evaluation.manifest_builder import BuildInput, producer_versions
from ..evaluation.measured_costs import monotonic, with_costs
from ..evaluation.reference import ReferenceRequest
from ..evaluation.trials import write_constants
from .described import describe_own_model, forget_modules, make_program, non_persistent_buffers
from .imports import imported_by
from .learned_outputs import learned_outputs
from .trial import EagerFailure, Trial, answer, batch_of, equal, lengths_to_answer, try_described

ENGINE = "eager"
"""The engine that an archive names: torch runs the model operator by operator."""


@dataclass(frozen=True)
class OwnModelResult:
    """The archive of a model that answers by its own code, for the report."""

    archive: Path
    size: int
    manifest: Manifest
    state: tuple[str, ...]
    """Names of the state that requests leave behind in the model, and that is put back."""
    notes: tuple[str, ...]

    @property
    def model(self) -> OwnModel:
        """The description of the model."""
        assert self.manifest.model is not None
        return self.manifest.model


def package_own_model(
    build: BuildInput, model: torch.nn.Module, model_file: Path, refusal: Exception | None, notes: tuple[str, ...]
) -> OwnModelResult:
    """Leave the tree as an archive in which the model itself answers.

    `refusal` is the reason why it is not lowered; None: the configuration asks for it.

    Raises `LoweringError`: the refusal itself, where it says more.
    Raises `PackagingError`: the model fails in eager mode on one request, or its answers follow from other requests.
    """
    config = build.config
    reason = "`lowering: off`" if refusal is None else str(refusal).partition("\n")[0].rstrip(":")
    why = "" if refusal is None else f"{reason}. Its own code cannot be served either: "
    with refusing(PackagingError, why):
        description = describe_own_model(model, model_file, config, reason)
    constants = {} if description.module is None else non_persistent_buffers(model)
    write_constants(build.tree, constants)
    try:
        lengths = lengths_to_answer(config, shortest := shortest_length(model, config))
        described, trial = try_described(build, description, constants, lengths)
    except EagerFailure as failure:
        if isinstance(refusal, (InputsDoNotFit, FailsEagerly)):
            raise refusal from failure
        raise
    native = _with_native_layers(build, described, trial, constants)
    described, trial = native or (described, trial)
    carried = carried_files(ENGINE, own_model=True, native_layers=native is not None)
    layout.copy_serving_files(build.tree, carried)
    with refusing(PackagingError, why):
        manifest = _manifest(build, described, trial, shortest, bool(constants))
        layout.check_labels(build.tree, manifest.outputs, config.codec)
    write_manifest(manifest, build.tree)
    loaded = _loaded(build)
    _verify(loaded, trial)
    measured = _measured(loaded, trial)
    write_manifest(measured, build.tree)
    _loaded(build)  # once more, as a host will
    told = (*notes, *_unused_keys(config), *filter(None, [trial.failure]))
    return OwnModelResult(build.tree, 0, measured, trial.state, told)


def _loaded(build: BuildInput) -> LoadedArchive:
    forget_modules(build.tree)
    return load_archive(build.tree, build.threads)


def _manifest(build: BuildInput, model: OwnModel, trial: Trial, shortest: int, has_constants: bool) -> Manifest:
    config = build.config
    checked = sorted({request.length for request in trial.requests} & {*config.grid.lengths})
    return Manifest(
        backend=ENGINE,
        requires=(RequiredPackage("torch", "torch", torch_version()), *imported_by(build.tree, model)),
        host={}
        if model.recurrences is None
        else {**target_machine.host(), **symbol_versions((build.tree / model.recurrences).glob("*.so"))},
        inputs=tuple(replace(spec, vocabulary=trial.vocabularies.get(spec.name)) for spec in config.input_specs),
        takes_lengths=False,
        outputs=learned_outputs(trial.observed, trial.batch_dims, config.outputs),
        overflow=config.overflow,
        kind="sequence",
        kind_reason="the model itself answers, for a whole sequence at once",
        carried=(),
        grid=BucketGrid((1,), config.grid.lengths),
        shapes="any",
        longest=config.longest,
        shortest=shortest,
        variants=(),
        checks=tuple(MeasuredError(Bucket(1, length), trial.error) for length in checked),
        costs=(),
        weights=build.weights,
        constants=layout.CONSTANTS if has_constants else None,
        codec=config.codec,
        placement=config.placement,
        threads=config.threads,
        limits=config.limits.limits,
        model=model,
        tolerance=ErrorTolerance(0.0, 0.0)
        if model.recurrences is None
        else ErrorTolerance(config.tolerance.atol, config.tolerance.rtol),
        produced_by=producer_versions(),
    )


def _verify(loaded: LoadedArchive, trial: Trial) -> None:
    """Compare the answers of the archive, as a host loads it, with those of the trial: every bit must be the same."""
    if trial.draws:
        return
    specs = loaded.manifest.outputs
    for request, expected in zip(trial.requests, trial.answers, strict=True):
        outputs = _answers(loaded, request)
        rows = [("", row_of(tensor, spec)) for (_, tensor), spec in zip(expected, specs, strict=True)]
        if not equal([("", tensor) for tensor in outputs], rows):
            raise PackagingError(
                f"{loaded.manifest.model.name if loaded.manifest.model else 'the model'} returns other outputs in the "
                f"archive than before, for a request of {request.length} timesteps: its answers follow from something "
                "outside of its weights, its files and its arguments"
            )


def _answers(loaded: LoadedArchive, request: ReferenceRequest) -> tuple[torch.Tensor, ...]:
    (answer,), _ = loaded.run_plan(loaded.plan([request.length]), [request.inputs], [request.length])
    return answer


def _measured(loaded: LoadedArchive, trial: Trial) -> Manifest:
    """Measure requests of the shortest and the longest length, and one between them."""
    by_length = {request.length: request for request in trial.requests}
    lengths = sorted(by_length)
    chosen = sorted({lengths[0], lengths[len(lengths) // 2], lengths[-1]})

    turns = measure({Bucket(1, length): partial(_answers, loaded, by_length[length]) for length in chosen})
    costs = monotonic({bucket: min(times) for bucket, times in turns.items()})
    measurement = CostMeasurement(loaded.threads, round(spread(turns), 3))
    return with_costs(loaded.manifest, {"sequence": costs}, {}, measurement)


def _unused_keys(config: ServingConfig) -> tuple[str, ...]:
    """Say which keys have no effect on a model that answers by its own code."""
    keys = {
        "backend": config.engine not in (AUTO, "native", ENGINE),
        "precision": config.precision != "float32",
        "buckets.kernel": config.buckets.kernel is not None,
        "partitioner_config": config.partitioner_config is not None,
        "shadow": config.shadow is not None,
    }
    unused = ", ".join(key for key, is_given in keys.items() if is_given)
    return (f"without effect on a model that answers by its own code: {unused}",) if unused else ()


def _with_native_layers(
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
    if native is None or (build.config.engine == AUTO and not _is_faster(program, plain, trial, build.config)):
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
    tolerance = config.tolerance.atol, config.tolerance.rtol
    differences = [
        difference(ours, eager, tolerance) if ours.dtype == eager.dtype else (inf, inf)
        for a, b in zip(answers, trial.answers, strict=True)
        for (_, ours), (_, eager) in zip(a, b, strict=True)
    ]
    if any(ratio > 1 for _, ratio in differences):
        return None
    return replace(trial, answers=tuple(answers), error=max(error for error, _ in differences))


def _is_faster(program: OwnProgram, plain: OwnProgram, trial: Trial, config: ServingConfig) -> bool:
    """Whether the requests take less time with the library than by torch.

    Each is timed alone: a short call is the likelier to have the cores for itself on a busy machine.
    """
    requests = [(batch_of(request, config), request.length) for request in trial.requests]
    calls = {
        (model, at): partial(model.outputs, *request)
        for at, request in enumerate(requests)
        for model in (program, plain)
    }
    turns = measure(calls, Effort(budget_ms=5.0))
    shortest = {model: sum(min(turns[model, at]) for at in range(len(requests))) for model in (program, plain)}
    return shortest[program] < shortest[plain]
