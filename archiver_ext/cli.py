"""The command `neuron-lstm`, and what `torch-model-archiver --handler neuron_lstm` runs.

Exit codes: 0 done; 1 refused or failed, with one message on standard error; 2 a wrong command line; 128 + n ended by
signal n. Heavy imports wait until they are needed, so that `--help` is quick.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .archive.workspace import Terminated, raise_on_termination
from .commands import analyze, bench, calibrate, init, inspect, replace_weights, schema, sessions, tune, verify_config

if TYPE_CHECKING:
    from .model_archiver import Flags

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
        from .report import print_result, to_json

        outcome = package(flags, manifest, Console(stderr=True))
        if as_json:
            sys.stdout.write(json.dumps(to_json(outcome), indent=2) + "\n")
        else:
            print_result(outcome, Console())

    return _guarded(run)


def _archive_command(given: Sequence[str]) -> int:
    """`neuron-lstm archive`: the archiver's own flags, our handler unless another is named, and --json."""
    from . import model_archiver
    from .supervise import archive_supervised

    if {"-h", "--help"} & set(given):
        sys.stdout.write("neuron-lstm archive takes --json and the options of torch-model-archiver:\n\n")
    arguments = [argument for argument in given if argument != "--json"]
    flags = model_archiver.parse(["--handler", "neuron_lstm", *arguments])
    if flags.handler != "neuron_lstm":
        sys.stderr.write(f"error: --handler {flags.handler} is torch-model-archiver's business; use that command\n")
        return 2
    return archive_supervised(flags, model_archiver.manifest_json(flags), as_json="--json" in given)


def _guarded(run: Callable[[], None]) -> int:
    """Run it with one message for each way in which it can end."""
    try:
        with raise_on_termination():
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
    from ..backends.interface import CompileError, LoadError
    from ..config.diagnostics import ConfigError
    from ..lowering import LoweringError
    from .errors import PackagingError

    return PackagingError, ConfigError, LoweringError, CompileError, LoadError, OSError


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="neuron-lstm",
        description="Serve LSTM and GRU models over sequences of every length with TorchServe.",
        epilog="Exit codes: 0 done, 1 refused or failed, 2 a wrong command line.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    commands.add_parser("archive", help="make an archive; takes the options of torch-model-archiver, and --json")
    for command in (schema, init, verify_config, analyze, inspect, calibrate, replace_weights, bench, tune, sessions):
        command.add_to(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
