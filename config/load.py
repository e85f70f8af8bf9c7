"""Loader of model-config.yaml: a configuration, or every problem at once with its path and line."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from .diagnostics import ConfigError, Diagnostic, Location, truncate
from .file_errors import describe_cause
from .frontend import Frontend
from .histogram import LengthsError, read_lengths
from .schema import BLOCK, NeuronLstmBlock, ServingConfig
from .strict import Strict
from .yaml_text import YamlDocument

_HISTOGRAM = (BLOCK, "buckets", "length", "histogram")

ModelT = TypeVar("ModelT", bound=Strict)


def load_config(path: Path) -> ServingConfig:
    """Load the configuration from a file.

    Raises `ConfigError`: it cannot be read, or something in it cannot be used.
    """
    return parse_config(config_text(path), str(path), path.parent)


def config_text(path: Path) -> str:
    """Read a file. Raises `ConfigError`: it cannot be read, or is not UTF-8."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(str(path), [Diagnostic("", 1, f"cannot be read: {describe_cause(error)}")]) from error
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = 1 + data.count(b"\n", 0, error.start)
        message = f"expected UTF-8 text, got the byte 0x{data[error.start]:02x}: save the file as UTF-8"
        raise ConfigError(str(path), [Diagnostic("", line, message)]) from error


def parse_config(text: str, source: str, folder: Path = Path()) -> ServingConfig:
    """Parse the text of a configuration.

    `source` names the file in messages, `folder` is the one that holds it.

    Raises `ConfigError`: something in it, or in the histogram it names, cannot be used.
    """
    document = YamlDocument(source)
    document.read(text)
    frontend = _checked(Frontend, document, {k: v for k, v in document.values.items() if k != BLOCK}, ())
    block = _checked(NeuronLstmBlock, document, document.values[BLOCK], (BLOCK,)) if BLOCK in document.values else None
    observed = _observed(document, folder)
    if not document.diagnostics and frontend is not None and block is not None:
        whole = {**dict(block), "frontend": frontend, "histogram": observed}
        config = _checked(ServingConfig, document, whole, (BLOCK,))
        if config is not None:
            return config
    raise ConfigError(source, document.diagnostics)


def load_block(path: Path) -> NeuronLstmBlock:
    """Load the plug-in's block of a file in an archive.

    The archive does not have the histogram that the block may name.

    Raises `ConfigError`: it cannot be read, or something in it cannot be used.
    """
    document = YamlDocument(str(path))
    document.read(config_text(path))
    block = _checked(NeuronLstmBlock, document, document.values[BLOCK], (BLOCK,)) if BLOCK in document.values else None
    if block is None or document.diagnostics:
        raise ConfigError(str(path), document.diagnostics)
    return block


def _observed(document: YamlDocument, folder: Path) -> dict[int, int] | None:
    name: Any = document.values
    for key in _HISTOGRAM:
        name = name.get(key) if isinstance(name, dict) else None
    if not isinstance(name, str) or not name:
        return None
    try:
        return read_lengths(folder / name)
    except LengthsError as error:
        document.report(_HISTOGRAM, f"{truncate(name if name.isprintable() else ascii(name))}: {error}")
        return None


def _checked(model: type[ModelT], document: YamlDocument, values: Any, prefix: Location) -> ModelT | None:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        for details in error.errors():
            location = details["loc"][:-1] if details["loc"][-1:] == ("[key]",) else details["loc"]
            document.report_once((*prefix, *location), details["msg"])
        return None
