"""Programs of archives that earlier versions wrote: exported programs in place of source.

Only the commands of this package read them. This file does not travel in archives.
"""

from __future__ import annotations

from pathlib import Path

import torch

from ..interface import LoadError, Weights


def read_former_program(path: Path, weights: Weights) -> torch.export.ExportedProgram:
    """Read the exported program at a path, over these weights.

    Raises:
        LoadError: this torch cannot read the program.
    """
    from .. import recurrent_operators as _recurrent_operators  # noqa: F401  registers the operators that it calls

    try:
        program = torch.export.load(path)
    except Exception as error:
        raise LoadError(
            f"torch {torch.__version__} cannot read {path} ({type(error).__name__}: {error}): package the model again"
        ) from error
    program._state_dict = {name: weights[name] for name in program._state_dict}
    program._constants = {name: weights.get(name, stripped) for name, stripped in program._constants.items()}
    return program
