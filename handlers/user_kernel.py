"""The user's own choice of buckets: a function that is written as `kernel: module:function` in the YAML.

    def choose(length: int, lengths: tuple[int, ...]) -> int

`length` is a sequence's timesteps, `lengths` are the grid's, ascending; the answer is the index of the one in whose
buckets the sequence runs. It is asked for every length while the archive is loaded, and never again.
"""

from __future__ import annotations

from pathlib import Path

from ..bucketing.kernel_table import tabulate
from ..config.manifest import Manifest
from .user_code import named, standing_in


def chosen_lengths(manifest: Manifest, directory: Path) -> tuple[int, ...] | None:
    """The bucket length for 1, 2, 3, ... timesteps, as the function in `directory` has it; None where there is none.

    Raises:
        RuntimeError: it is not there, or chooses what cannot be served; with the cause.
    """
    return None if manifest.kernel is None else read_kernel(manifest.kernel, manifest.grid.lengths, directory)


def read_kernel(reference: str, lengths: tuple[int, ...], directory: Path) -> tuple[int, ...]:
    """The same for the function of this name and the lengths of a grid.

    Raises:
        RuntimeError: as `chosen_lengths`.
    """
    with standing_in(directory):
        try:
            choose = named(reference, directory)
        except Exception as error:
            raise RuntimeError(f"kernel {reference}: {type(error).__name__}: {error}") from error
        try:
            return tabulate(choose, lengths)
        except ValueError as error:
            raise RuntimeError(f"kernel {reference}: {error}") from error
