"""A trace as one file: a zip of its description, its programs, its tensors and the state it begins with."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from ..backends.interface import CannotLoad
from ..backends.weights import BadWeights, read_weights
from . import contents as descriptions
from .contents import Contents
from .folder import Folder
from .kernel import restored
from .state import State
from .traced import Traced

_CONTENTS = "traced.json"
_WEIGHTS = "weights.pt"
_STATE = "state.pt"


def save(traced: Traced, path: Path) -> None:
    """Write `traced`; the file is there when it is whole.

    Raises:
        ValueError: a kernel or a preprocessor cannot be found again.
    """
    contents = replace(
        traced.contents,
        any_batch=traced.any_batch,
        kernel=None if traced.kernel is None else traced.kernel.saved(),
        preprocessor=None if traced.preprocessor is None else traced.preprocessor.saved(),
    )
    tensors = {_WEIGHTS: dict(traced.store), _STATE: _numbered(traced.state)}
    with tempfile.TemporaryDirectory(prefix="traced-", dir=path.resolve().parent) as scratch:
        whole = Path(scratch) / "whole"
        with zipfile.ZipFile(whole, "w") as archive:
            archive.writestr(_CONTENTS, descriptions.to_json(contents))
            for file in sorted(file for file in traced.folder.rglob("*") if file.is_file()):
                archive.write(file, file.relative_to(traced.folder), zipfile.ZIP_DEFLATED)
            for name, content in tensors.items():
                torch.save(content, Path(scratch) / name)
                archive.write(Path(scratch) / name, name)
        whole.replace(path)


def _numbered(state: State | None) -> dict[str, torch.Tensor]:
    return {} if state is None else {str(place): tensor for place, tensor in enumerate(state.initial)}


def load(path: str | Path) -> Traced:
    """Read what `Traced.save` wrote, and load it for this host's CPU.

    The file holds compiled code, and may name a function to import: load only what you would run.

    Raises:
        CannotLoad: there is no such file, it is damaged, or this host cannot run what is in it; says what to do.
    """
    folder = Folder()
    root = folder.path
    try:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(root)
        contents = descriptions.from_json((root / _CONTENTS).read_text(encoding="utf-8"))
        store, states = read_weights(root / _WEIGHTS), read_weights(root / _STATE)
    except (OSError, zipfile.BadZipFile, KeyError, BadWeights) as error:
        raise CannotLoad(f"{path} cannot be read as a traced file: {error}") from error
    for name in (_CONTENTS, _WEIGHTS, _STATE):  # mapped into memory; what stays is what `save` takes from the folder
        (root / name).unlink()
    kernel = None if contents.kernel is None else restored(contents.kernel)
    preprocessor = None if contents.preprocessor is None else restored(contents.preprocessor)
    state = None
    _check_complete(contents, store, states)
    if contents.aliases:
        initial = tuple(states[str(place)] for place in range(len(contents.aliases)))
        state = State(initial, state_shapes(contents), None if preprocessor is None else preprocessor.function)
    traced = Traced(contents, folder, store, state, kernel, preprocessor)
    traced.any_batch = contents.any_batch
    traced.reload()
    return traced


def state_shapes(contents: Contents) -> list[list[list[int]]]:
    """The shape of each state, by bucket."""
    kinds = [list(program.signature.inputs.values()) for program in contents.programs]
    return [[[int(size) for size in own[place].shape] for place, _ in contents.aliases] for own in kinds]


def _check_complete(contents: Contents, store: Mapping[str, torch.Tensor], states: Mapping[str, torch.Tensor]) -> None:
    missing = {key for program in contents.programs for key in program.stored.values()} - set(store)
    missing |= {f"{_STATE}/{place}" for place in range(len(contents.aliases)) if str(place) not in states}
    if missing:
        raise CannotLoad(f"the traced file lacks the tensors {', '.join(sorted(missing))}: trace the function again")
