"""The command `neuron-lstm`, and what `torch-model-archiver --handler neuron_lstm` runs.

Exit codes: 0 done; 1 refused or failed, with one message on standard error; 2 a wrong command line; 128 + n ended by
signal n. Heavy imports wait until they are needed, so that `--help` is quick.
"""

from __future__ import annotations

import argparse
import ast
import json
import logging
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .workspace import Terminated, terminations_raised

if TYPE_CHECKING:
    from .stock import Flags

_FAILED = 1
_BUG = "This is a bug in torchserve-neuron-lstm: please report it with the lines above."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `neuron-lstm`. Returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["archive"]:
        return _archive_command(given[1:])
    options = _parser().parse_args(given)
    return _guarded(lambda: options.run(options))


def archive(flags: Flags, manifest: str, *, as_json: bool = False) -> int:
    """Make the archive that the archiver's flags ask for, in this process, and report. Returns the exit code."""

    def run() -> None:
        logging.basicConfig(format="%(levelname)s - %(message)s")  # as torch-model-archiver does
        from rich.console import Console

        from .package import package
        from .report import print_outcome, to_json

        outcome = package(flags, manifest, Console(stderr=True))
        if as_json:
            _print_json(to_json(outcome))
        else:
            print_outcome(outcome, Console())

    return _guarded(run)


def _archive_command(given: Sequence[str]) -> int:
    """`neuron-lstm archive`: the archiver's own flags, our handler unless another is named, and --json."""
    from . import stock
    from .supervise import archive_supervised

    if {"-h", "--help"} & set(given):
        sys.stdout.write("neuron-lstm archive takes --json and the options of torch-model-archiver:\n\n")
    arguments = [argument for argument in given if argument != "--json"]
    flags = stock.parse(["--handler", "neuron_lstm", *arguments])
    if flags.handler != "neuron_lstm":
        sys.stderr.write(f"error: --handler {flags.handler} is torch-model-archiver's business; use that command\n")
        return 2
    return archive_supervised(flags, stock.manifest_json(flags), as_json="--json" in given)


def _guarded(run: Callable[[], None]) -> int:
    """Run it with one message for each way in which it can end."""
    try:
        with terminations_raised():
            run()
    except KeyboardInterrupt:
        return _stopped(signal.SIGINT)
    except Terminated as end:
        return _stopped(end.signal)
    except Exception as error:  # noqa: BLE001 - the edge: what is not expected is shown whole
        return _failed(error)
    return 0


def _stopped(by: signal.Signals) -> int:
    sys.stderr.write(f"stopped by {by.name}; nothing was written\n")
    return 128 + by


def _failed(error: Exception) -> int:
    if isinstance(error, _expected()):
        sys.stderr.write(f"error: {error}\n")
    else:
        traceback.print_exception(error)
        sys.stderr.write(f"error: {type(error).__name__}: {error}\n{_BUG}\n")
    return _FAILED


def _expected() -> tuple[type[Exception], ...]:
    """What is raised for the person at the keyboard; anything else is a mistake of ours."""
    from ..backends.interface import CannotCompile, CannotLoad
    from ..config.problems import ConfigError
    from .errors import PackagingError
    from .lowering import LoweringRefused

    return PackagingError, ConfigError, LoweringRefused, CannotCompile, CannotLoad, OSError


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="neuron-lstm",
        description="Serve LSTM and GRU models over sequences of every length with TorchServe.",
        epilog="Exit codes: 0 done, 1 refused or failed, 2 a wrong command line.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    commands.add_parser("archive", help="make an archive; takes the options of torch-model-archiver, and --json")
    _schema_command(commands)
    _init_command(commands)
    _verify_config_command(commands)
    _inspect_command(commands)
    return parser


def _schema_command(commands: Any) -> None:
    command = commands.add_parser("schema", help="print the JSON Schema of model-config.yaml, for editors")
    command.set_defaults(run=lambda options: _schema())


def _schema() -> None:
    from ..config.schema import json_schema

    _print_json(json_schema())


def _init_command(commands: Any) -> None:
    command = commands.add_parser(
        "init", help="write a commented model-config.yaml to start from, by looking at the model"
    )
    command.add_argument("--model-file", required=True, type=Path, help="the Python file with the model's class")
    command.add_argument(
        "--args", nargs="+", default=[], type=_assignment, metavar="NAME=VALUE", help="arguments of the class"
    )
    command.add_argument("-o", "--output", type=Path, help="where to write it (default: standard output)")
    command.add_argument("-f", "--force", action="store_true", help="overwrite the output")
    command.set_defaults(run=_init)


def _assignment(text: str) -> tuple[str, Any]:
    """One NAME=VALUE; the value is a Python literal, or else the text itself.

    >>> _assignment("hidden=256"), _assignment("cell=lstm")
    (('hidden', 256), ('cell', 'lstm'))
    """
    name, equals, value = text.partition("=")
    if not (equals and name.isidentifier()):
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _init(options: argparse.Namespace) -> None:
    from .errors import PackagingError
    from .init_config import starting_config
    from .source import importable, load_class

    if options.output is not None and options.output.exists() and not options.force:
        raise PackagingError(f"{options.output} exists; give --force to overwrite it")
    if not options.model_file.is_file():
        raise PackagingError(f"there is no file {options.model_file}")
    with importable(options.model_file.resolve().parent):
        text = starting_config(load_class(options.model_file.resolve()), dict(options.args))
    if options.output is None:
        sys.stdout.write(text)
    else:
        options.output.write_text(text, encoding="utf-8")


def _verify_config_command(commands: Any) -> None:
    command = commands.add_parser("verify-config", help="check a model-config.yaml without packaging anything")
    command.add_argument("file", type=Path)
    command.set_defaults(run=_verify_config)


def _verify_config(options: argparse.Namespace) -> None:
    from ..config.load import load_config

    grid = load_config(options.file).grid
    sys.stdout.write(f"{options.file}: good, {len(grid.buckets)} buckets\n")


def _inspect_command(commands: Any) -> None:
    command = commands.add_parser("inspect", help="say what is in an archive")
    command.add_argument("archive", type=Path, help="a .mar, a .tar.gz or a folder")
    command.add_argument("--json", action="store_true", help="print the manifest as it is")
    command.set_defaults(run=_inspect)


def _inspect(options: argparse.Namespace) -> None:
    from rich.console import Console

    from .inspect_archive import print_manifest, read_manifest_text

    text = read_manifest_text(options.archive)
    if options.json:
        sys.stdout.write(text)
    else:
        print_manifest(json.loads(text), Console())


def _print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
