"""Advice for a model file whose imports fail: an archive has its files in one folder."""

from __future__ import annotations

_RELATIVE = "attempted relative import"


def import_advice(error: BaseException) -> str:
    """Say how a failed import is made to work, in brackets; empty for other errors.

    >>> print(import_advice(ModuleNotFoundError("No module named 'blocks'", name="blocks"))[:52])
     (if it is your file, give blocks.py with --extra-fi
    """
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        return _missing(error.name)
    if isinstance(error, ImportError) and _RELATIVE in str(error):
        return (
            " (the model's file is no part of a package in the archive. Write `from layers import Block` in place of "
            "`from .layers import Block`, and give layers.py with --extra-files. Or keep your package: give a folder "
            "that contains it with --extra-files, and as --model-file another file, with "
            "`from package.model import Net` and `class Model(Net): pass`)"
        )
    return ""


def _missing(name: str) -> str:
    top = name.partition(".")[0]
    return (
        f" (if it is your file, give {top}.py with --extra-files. If it is your folder, put it into another one, as in "
        f"parts/{top}/, and give --extra-files parts: only the content of a folder gets into the archive. If it is a "
        "package, install it here)"
    )
