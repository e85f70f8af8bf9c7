"""The user's codec and bucket selector: a class and a function of extra files, which the YAML names."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

from ..config.schema import ServingConfig
from ..handlers.runtime.user_code import load_bucket_selector
from ..lowering.program import LoweredModel
from .errors import PackagingError


def check_codec(codec: str | None, directory: Path) -> None:
    """Refuse a codec `module:Class` that is not in the archive. Its module must be `importable`.

    Raises:
        PackagingError: no such file among the extra files, it fails to import, or defines no such class.
    """
    if codec is None:
        return
    name, _, class_name = codec.partition(":")
    file = _extra_file("codec", codec, directory)
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise PackagingError(
            f"neuron_lstm.codec: {file.name} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(getattr(module, class_name, None), type):
        raise PackagingError(f"neuron_lstm.codec: {file.name} defines no class {class_name}")


def with_bucket_selector(program: LoweredModel, config: ServingConfig) -> LoweredModel:
    """Restrict a program to whole sequences in the grid's shapes, if the user selects the buckets."""
    if config.buckets.kernel is None:
        return program
    reason = f"{config.buckets.kernel} selects a bucket for each whole sequence"
    return replace(program, chunked=None, chunking_reason=reason, any_shape=False)


def check_bucket_selector(config: ServingConfig, directory: Path) -> None:
    """Refuse a bucket selector that is not in the archive or does not work. Files must be `importable`.

    Raises:
        PackagingError: it is not among the extra files, or fails for some lengths, which are named.
    """
    reference = config.buckets.kernel
    if reference is None:
        return
    _extra_file("buckets.kernel", reference, directory)
    try:
        load_bucket_selector(reference, config.grid.lengths, directory)
    except RuntimeError as error:
        raise PackagingError(f"neuron_lstm.buckets.{error}") from error


def _extra_file(key: str, reference: str, directory: Path) -> Path:
    """Return the file that a reference of the YAML's `key` is in."""
    file = directory.joinpath(*reference.partition(":")[0].split(".")).with_suffix(".py")
    if not file.is_file():
        named = f"neuron_lstm.{key}: {reference}"
        raise PackagingError(f"{named}: there is no {file.name} in the archive; give it with --extra-files")
    return file
