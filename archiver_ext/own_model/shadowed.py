"""The model's own code in the archive of a lowered model, with which answers are compared while it serves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from ...config.own_model import OwnModel, Shadow
from ...config.schema import ServingConfig, ShadowConfig
from ...handlers.runtime.loader import LoadedArchive
from ...handlers.runtime.shadow import own_answer, worst_difference
from ...lowering.eager_call import shortest_length
from ..errors import PackagingError
from ..evaluation.manifest_builder import BuildInput
from ..evaluation.reference import ReferenceRequest
from .described import describe_own_model, forget_modules, make_program, non_persistent_buffers
from .imports import reached_files
from .trial import try_model


@dataclass(frozen=True)
class PreparedShadow:
    """Facts that an archive needs to compare answers."""

    shadow: Shadow
    constants: dict[str, torch.Tensor]
    """The buffers that no state dict holds."""
    requests: tuple[ReferenceRequest, ...]


def prepare_shadow(
    build: BuildInput, settings: ShadowConfig, model: torch.nn.Module, model_file: Path
) -> PreparedShadow:
    """Describe the model, and try its own code as that of a model that is not lowered.

    Raises `PackagingError`: its own code cannot answer on a host, or not beside the code that decodes requests.
    """
    config = build.config
    try:
        description = describe_own_model(model, model_file, config, "answers are compared with it (`shadow`)")
        _check_files(description, model_file, config)
        constants = non_persistent_buffers(model)
        make = partial(make_program, build, description, constants)
        trial = try_model(make, description.name, config, shortest_length(model, config))
        if trial.draws:
            raise PackagingError(f"{description.name} draws random numbers, so no answer can be compared")  # noqa: TRY301 - it is told as the others
    except PackagingError as error:
        raise PackagingError(f"neuron_lstm.shadow: {error}. Leave `shadow` out to package it without") from error
    described = replace(description, answers_padding=trial.answers_padding, rewritten=trial.rewritten)
    return PreparedShadow(Shadow(settings.share, settings.on_difference, described), constants, trial.requests)


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
    shared = sorted(file.name for file in reached_files(model_file) & reached_files(codec))
    if shared:
        raise PackagingError(
            f"the codec and the model both use {', '.join(shared)}, in two threads: give each files of its own"
        )


def compare_once(loaded: LoadedArchive, tree: Path, prepared: PreparedShadow) -> Iterator[str]:
    """Compare the answers to the requests of the trial as a host will; yields a note about the largest difference.

    Raises `PackagingError`: the model's own code returns other outputs than the programs.
    """
    forget_modules(tree)
    manifest, different, largest = loaded.manifest, 0, 0.0
    answer = own_answer(tree, manifest, prepared.shadow)
    for request in prepared.requests:
        (outputs,), _ = loaded.run_plan(loaded.plan([request.length]), [request.inputs], [request.length])
        try:
            worst = worst_difference(answer, request.inputs, request.length, outputs, manifest)
        except RuntimeError as error:
            raise PackagingError(f"neuron_lstm.shadow: {error}. Leave `shadow` out to package it without") from error
        if worst is not None:
            different, largest = different + 1, max(largest, worst[1])
    if different:
        yield (
            f"{different} of {len(prepared.requests)} requests at scales up to 300 differ from the model's own code by "
            f"more than the tolerance, {largest:.1e} at most: the shadow counts such requests as differences; write a "
            "larger `tolerance` if your requests are of this scale"
        )
