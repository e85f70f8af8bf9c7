"""A user's own choice of buckets while packaging: held against every length, and the programs made for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..config.schema import ServingConfig
from ..handlers.user_kernel import read_kernel
from .errors import PackagingError
from .lowering.program import Program


def for_kernel(program: Program, config: ServingConfig) -> Program:
    """The program as it is served where the user chooses the buckets: whole sequences, in the grid's shapes alone.

    Raises:
        PackagingError: each length has but one bucket, so there is nothing to choose.
    """
    if config.buckets.kernel is None:
        return program
    if program.padding == "exact_lengths":
        raise PackagingError(
            "neuron_lstm.buckets.kernel: there is nothing to choose, for this model is served at the exact bucket "
            f"lengths ({program.padding_reason}): leave kernel out"
        )
    reason = f"{config.buckets.kernel} chooses a bucket for the whole of a sequence"
    return replace(program, split=None, split_reason=reason, any_shape=False)


def check_kernel(config: ServingConfig, directory: Path) -> None:
    """Refuse a function that the archive will not have, or that cannot be served by. Files must be `importable`.

    Raises:
        PackagingError: it is not among the extra files, or goes wrong; the first lengths for which it does are named.
    """
    reference = config.buckets.kernel
    if reference is None:
        return
    file = directory.joinpath(*reference.partition(":")[0].split(".")).with_suffix(".py")
    if not file.is_file():
        raise PackagingError(
            f"neuron_lstm.buckets.kernel: {reference}: there is no {file.name} in the archive; give it with "
            "--extra-files"
        )
    try:
        read_kernel(reference, config.grid.lengths, directory)
    except RuntimeError as error:
        raise PackagingError(f"neuron_lstm.buckets.{error}") from error
