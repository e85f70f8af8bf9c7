"""The command `neuron-lstm`.

Exit codes: 0 done; 1 refused or failed, with one message on standard error; 2 a wrong command line; 128 + n ended by
signal n. Heavy imports wait until they are needed, so that `--help` is quick.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from .archive_command import guarded
from .commands import COMMANDS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `neuron-lstm`. Returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["archive"]:
        return _archive(given[1:])
    options = _parser().parse_args(given)
    return guarded(lambda: options.run(options))


def _archive(given: Sequence[str]) -> int:
    """`neuron-lstm archive`: the archiver's own flags, our handler unless another is named, and --json."""
    from . import model_archiver
    from .supervise import archive_supervised

    if {"-h", "--help"} & set(given):
        sys.stdout.write("neuron-lstm archive takes --json and the options of torch-model-archiver:\n\n")
    arguments = [argument for argument in given if argument != "--json"]
    flags = model_archiver.parse(["--handler", "neuron_lstm", *arguments])
    if flags.handler != "neuron_lstm":
        hyphen = flags.handler == "neuron-lstm"
        advice = ": leave it out, or write neuron_lstm" if hyphen else " needs the command torch-model-archiver itself"
        sys.stderr.write(f"error: --handler {flags.handler}{advice}\n")
        return 2
    return archive_supervised(flags, model_archiver.manifest_json(flags), as_json="--json" in given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="neuron-lstm",
        description="Serve LSTM and GRU models over sequences of every length with TorchServe.",
        epilog="Exit codes: 0 done, 1 refused or failed, 2 a wrong command line.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    commands.add_parser("archive", help="make an archive; takes the options of torch-model-archiver, and --json")
    for name in COMMANDS:
        import_module(f".commands.{name}", __package__).add_to(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
