"""The user's codec: a class of an extra file, which the YAML names."""

from __future__ import annotations

import importlib
from pathlib import Path

from .errors import PackagingError
from .extra_file import extra_file


def check_codec(codec: str | None, directory: Path) -> None:
    """Refuse a codec `module:Class` that is not in the archive. Its module must be `importable`.

    Raises:
        PackagingError: no such file among the extra files, it fails to import, or defines no such class.
    """
    if codec is None:
        return
    name, _, class_name = codec.partition(":")
    file = extra_file("codec", codec, directory)
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise PackagingError(
            f"neuron_lstm.codec: {file.name} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(getattr(module, class_name, None), type):
        raise PackagingError(f"neuron_lstm.codec: {file.name} defines no class {class_name}")
