"""`neuron-lstm verify-config`: the check of a configuration."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import Commands


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "verify-config",
        help="check a model-config.yaml without packaging anything",
        description="Check a model-config.yaml without packaging anything: every problem at once, with path and line.",
    )
    command.add_argument("file", type=Path, help="the model-config.yaml")
    command.set_defaults(run=_verify_config)


def _verify_config(options: argparse.Namespace) -> None:
    from ...config.load import load_config

    config = load_config(options.file)
    _check_engine(config.engine, ("backend",), options.file)
    for name in config.auto.engines or ():
        _check_engine(name, ("backend", "auto", "try"), options.file)
    grid = config.grid
    sys.stdout.write(f"{options.file}: valid, {len(grid.buckets)} buckets\n")


def _check_engine(name: str, key: tuple[str, ...], file: Path) -> None:
    """Refuse a backend that nothing installed here provides; `key` is its place below `neuron_lstm`."""
    from ...backends.registry import backend_names, unknown_backend
    from ...config.diagnostics import ConfigError, Diagnostic, format_path
    from ...config.engine_choice import AUTO
    from ...config.schema import BLOCK
    from ...config.yaml_text import find_span

    if name in (AUTO, *backend_names()):
        return
    text = file.read_text(encoding="utf-8")
    span = find_span(text, (BLOCK, *key))
    line = 1 if span is None else 1 + text.count("\n", 0, span.start)
    raise ConfigError(str(file), [Diagnostic(format_path((BLOCK, *key)), line, unknown_backend(name))])
