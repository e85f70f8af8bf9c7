"""The user's bucket selector: a function of an extra file, which the YAML names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..config.schema import ServingConfig
from ..handlers.runtime.user_code import load_bucket_selector
from ..lowering.program import LoweredModel
from .errors import PackagingError
from .extra_file import extra_file


def with_bucket_selector(program: LoweredModel, config: ServingConfig) -> LoweredModel:
    """Restrict a program to whole sequences in the grid's shapes, if the user selects the buckets.

    Raises:
        PackagingError: each length has only one bucket, so there is nothing to select.
    """
    if config.buckets.kernel is None:
        return program
    if program.padding == "exact_lengths":
        raise PackagingError(
            "neuron_lstm.buckets.kernel: there is nothing to select, because this model is served at the exact bucket "
            f"lengths ({program.padding_reason}): leave kernel out"
        )
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
    extra_file("buckets.kernel", reference, directory)
    try:
        load_bucket_selector(reference, config.grid.lengths, directory)
    except RuntimeError as error:
        raise PackagingError(f"neuron_lstm.buckets.{error}") from error
