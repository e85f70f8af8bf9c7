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

_ARCHIVE_HELP = """\
Package a model: compile it for every bucket, verify it, measure it, and write an archive.

  neuron-lstm archive --model-name tagger --version 1.0 --model-file model.py --serialized-file weights.pt \\
      --config-file model-config.yaml

The options are those of torch-model-archiver, and --json, which prints the report as JSON. --handler may be left out.

"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `neuron-lstm`. Returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["archive"]:
        return _archive(given[1:])
    if given[:1] == ["--version"]:
        from importlib.metadata import version

        sys.stdout.write(f"neuron-lstm {version('torchserve-neuron-lstm')}\n")
        return 0
    options = _parser().parse_args(given)
    return guarded(lambda: options.run(options))


def _archive(given: Sequence[str]) -> int:
    """`neuron-lstm archive`: the archiver's own flags, our handler unless another is named, and --json."""
    from . import model_archiver
    from .supervise import archive_supervised

    if {"-h", "--help"} & set(given):
        sys.stdout.write(_ARCHIVE_HELP)
    arguments = [argument for argument in given if argument != "--json"]
    try:
        flags = model_archiver.parse(["--handler", "neuron_lstm", *arguments])
    except model_archiver.CommandLineError as error:
        sys.stderr.write(f"error: {error}; `neuron-lstm archive --help` shows a command and all options\n")
        return 2
    if flags.handler != "neuron_lstm":
        hyphen = flags.handler == "neuron-lstm"
        advice = ": leave it out, or write neuron_lstm" if hyphen else ": only torch-model-archiver itself takes it"
        sys.stderr.write(f"error: --handler {flags.handler}{advice}\n")
        return 2
    return archive_supervised(flags, model_archiver.manifest_json(flags), as_json="--json" in given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="neuron-lstm",
        description="Serve LSTM and GRU models over sequences of every length with TorchServe.",
        epilog="Exit codes: 0 done, 1 refused or failed, 2 a wrong command line.",
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    commands.add_parser("archive", help="make an archive; takes the options of torch-model-archiver, and --json")
    for name in COMMANDS:
        import_module(f".commands.{name}", __package__).add_to(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
