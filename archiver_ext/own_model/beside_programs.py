"""The model's own code beside its programs: it answers what these do not take, and answers are compared with it."""

from __future__ import annotations

import timeit
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from ...config.own_model import OwnModel, Shadow, ShortSequences
from ...config.schema import ServingConfig, ShadowConfig
from ...handlers.runtime.loader import LoadedArchive
from ...handlers.runtime.model_outputs import row_of
from ...handlers.runtime.own_model import OwnProgram
from ...handlers.runtime.shadow import load_shadow, worst_difference
from ...lowering.eager_call import shortest_length
from ...lowering.program import LoweredModel
from ..errors import PackagingError, refusing
from ..evaluation.manifest_builder import BuildInput
from ..evaluation.reference import ReferenceRequest
from .described import describe_own_model, forget_modules, make_program, non_persistent_buffers
from .imports import reached_files
from .trial import batch_of, lengths_to_answer, try_described

_WITHOUT_SHADOW = "neuron_lstm.shadow: ", ". Leave `shadow` out to package it without"


@dataclass(frozen=True)
class PreparedShadow:
    """Facts that an archive needs to compare answers."""

    shadow: Shadow
    requests: tuple[ReferenceRequest, ...]


def prepare_shadow(build: BuildInput, settings: ShadowConfig, model: nn.Module, model_file: Path) -> PreparedShadow:
    """Describe the model, and try its own code as that of a model that is not lowered.

    Raises `PackagingError`: its own code cannot answer on a host, or not beside the code that decodes requests.
    """
    config = build.config
    with refusing(PackagingError, *_WITHOUT_SHADOW):
        description = describe_own_model(model, model_file, config, "answers are compared with it (`shadow`)")
        _check_files(description, model_file, config)
        lengths = lengths_to_answer(config, shortest_length(model, config))
        described, trial = try_described(build, description, non_persistent_buffers(model), lengths)
        if trial.draws:
            raise PackagingError(f"{description.name} draws random numbers, so no answer can be compared")
    return PreparedShadow(Shadow(settings.share, settings.on_difference, described), trial.requests)


def prepare_short(
    build: BuildInput, program: LoweredModel, model: nn.Module, model_file: Path
) -> ShortSequences | None:
    """Describe the model for sequences that eager mode takes and the programs do not; None if there are none.

    Raises `PackagingError`: its own code cannot answer them on a host.
    """
    if program.shortest == 1 or build.config.lowering == "required":
        return None
    shortest = shortest_length(model, build.config)
    if shortest == program.shortest:
        return None
    reason = f"its programs take {program.shortest} timesteps or more"
    description = describe_own_model(model, model_file, build.config, reason)
    lengths = sorted({*range(shortest, program.shortest)[:8], program.shortest - 1})
    constants = non_persistent_buffers(model)
    described, trial = try_described(build, description, constants, lengths)
    for outputs in trial.answers:
        if len(outputs) != len(program.outputs):
            raise PackagingError(f"the model returns {len(outputs)} tensors for them, not {len(program.outputs)}")
        with refusing(RuntimeError):
            for (_, tensor), spec in zip(outputs, program.outputs, strict=True):
                row_of(tensor, spec)
    own = make_program(build, described, constants, described.rewritten)
    slowest = max(_milliseconds(own, request, build.config) for request in trial.requests)
    return ShortSequences(shortest, slowest, described)


def _milliseconds(program: OwnProgram, request: ReferenceRequest, config: ServingConfig) -> float:
    """Return the least time of several calls, as other programs may run beside them."""
    return 1000 * min(
        timeit.repeat(lambda: program.outputs(batch_of(request, config), request.length), number=1, repeat=5)
    )


def _check_files(description: OwnModel, model_file: Path, config: ServingConfig) -> None:
    """Refuse files that two threads would change: the model's state is put back while requests are decoded."""
    if description.imports_late:
        raise PackagingError(
            f"{model_file.name}, or a file that it imports, imports another one of the archive within a function: "
            "import it at the top of the file, because the model runs in a thread beside that of the requests"
        )
    if config.codec is None:
        return
    codec = model_file.parent / f"{config.codec.partition(':')[0].replace('.', '/')}.py"
    if shared := sorted(file.name for file in reached_files(model_file) & reached_files(codec)):
        raise PackagingError(
            f"the codec and the model both use {', '.join(shared)}, in two threads: give each files of its own"
        )


def compare_once(loaded: LoadedArchive, tree: Path, prepared: PreparedShadow) -> Iterator[str]:
    """Compare the answers to the requests of the trial as a host will; yields a note about the largest difference.

    Raises `PackagingError`: the model's own code returns other outputs than the programs.
    """
    forget_modules(tree)
    manifest, different, largest = loaded.manifest, 0, 0.0
    answer = load_shadow(tree, manifest, prepared.shadow).answering(manifest.outputs)
    for request in prepared.requests:
        (outputs,), _ = loaded.run_plan(loaded.plan([request.length]), [request.inputs], [request.length])
        with refusing(RuntimeError, *_WITHOUT_SHADOW):
            worst = worst_difference(answer, request.inputs, request.length, outputs, manifest)
        if worst is not None:
            different, largest = different + 1, max(largest, worst[1])
    if different:
        yield (
            f"{different} of {len(prepared.requests)} requests at scales up to 300 differ from the model's own code by "
            f"more than the tolerance, {largest:.1e} at most: the shadow counts such requests as differences; write a "
            "larger `tolerance` if your requests are of this scale"
        )
