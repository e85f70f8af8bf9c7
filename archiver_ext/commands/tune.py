"""`neuron-lstm tune`: bucket lengths that fit the traffic."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from functools import partial, reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import PackagingError, refusing
from . import Commands, check_output, positive, print_json, print_note

if TYPE_CHECKING:
    from .tuning.proposal import Proposal
    from .tuning.target import Target

_MAX_COUNT = 256
_STDIN = "-"
_PICTURES = (".svg", ".png", ".pdf")


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "tune",
        help="find bucket lengths that fit the traffic",
        description="Find the bucket lengths with the least padding for observed lengths, and show how much they save.",
    )
    command.add_argument(
        "lengths",
        nargs="+",
        metavar="LENGTHS",
        help="a file of lengths, separated by blanks, commas or lines (12:3 for three of 12); or a log of TorchServe "
        "with the handler's lines `neuron_lstm lengths ...`; or - for standard input",
    )
    command.add_argument("--model", help="the model, for logs with the lengths of several models")
    command.add_argument("--config", type=Path, metavar="YAML", help="the model-config.yaml with the current lengths")
    command.add_argument("--archive", type=Path, metavar="MAR", help="an archive, with its lengths and their costs")
    count = partial(positive, largest=_MAX_COUNT)
    command.add_argument(
        "--count", type=count, metavar="N", help="number of lengths (default: the current number, or 8)"
    )
    command.add_argument("--longest", type=positive, metavar="N", help="the longest sequence to accept")
    command.add_argument("--picture", type=_picture, metavar="FILE", help="draw the padding, as .svg, .png or .pdf")
    command.add_argument("--save-lengths", type=Path, metavar="FILE", help="write the lengths, for `histogram:`")
    command.add_argument("--json", action="store_true", help="print the figures as JSON")
    command.set_defaults(run=_tune)


def _picture(text: str) -> Path:
    if Path(text).suffix not in _PICTURES:
        raise argparse.ArgumentTypeError(f"expected a file that ends in {', '.join(_PICTURES)}, got {text}")
    return Path(text)


def _tune(options: argparse.Namespace) -> None:
    from rich.console import Console

    from ...config.load import load_config
    from ...inference.reader import ArchiveReader
    from .tuning.proposal import print_proposal, propose
    from .tuning.target import find_target

    for name, written in (("--save-lengths", options.save_lengths), ("--picture", options.picture)):
        for what, given in _read_files(options):
            if written is not None:
                check_output(written, given, what, name)
    histogram = _read(options.lengths, options.model)
    config = None if options.config is None else load_config(options.config)
    archive = None if options.archive is None else (options.archive, ArchiveReader(options.archive).manifest())
    target = find_target(config, archive, options.config)
    with refusing(ValueError):
        proposal = propose(histogram, target, count=options.count, longest=options.longest)
    if options.json:
        print_json({**proposal.to_json(), "engine": target.engine.engine, "notes": list(target.notes())})
    else:
        print_proposal(proposal, target, Console())
        if target.engine.lengths_matter or proposal.proposed.lengths != target.lengths:
            sys.stdout.write(f"neuron_lstm:\n  buckets:\n    length: {list(proposal.proposed.lengths)}\n")
    for line in (*(f"note: {note}" for note in target.notes()), *_write(options, proposal, target)):
        print_note(line)


def _read_files(options: argparse.Namespace) -> Iterator[tuple[str, Path]]:
    yield from (("a file of lengths that is read", Path(file)) for file in options.lengths if file != _STDIN)
    named = ("the configuration", options.config), ("the archive", options.archive)
    yield from ((what, file) for what, file in named if file is not None)


def _read(files: Iterable[str], model: str | None) -> dict[int, int]:
    from ...config.histogram import LengthsError, parse_lengths

    observed = []
    for file in files:
        if file != _STDIN and not Path(file).is_file():
            raise PackagingError(f"there is no file {file}: give a file of lengths or a log, or - for standard input")
        data = sys.stdin.buffer.read() if file == _STDIN else Path(file).read_bytes()
        with refusing(LengthsError, f"{'standard input' if file == _STDIN else file}: "):
            observed.append(parse_lengths(data))
    with refusing(LengthsError, "the log ", ": name one with --model"):
        return reduce(add, observed).histogram(model)


def _write(options: argparse.Namespace, proposal: Proposal, target: Target) -> Iterator[str]:
    """Write the requested files, and yield a line for each."""
    from ..archive.workspace import write_output
    from .tuning.picture import draw

    if options.save_lengths is not None:
        lines = "".join(f"{length}:{number}\n" for length, number in sorted(proposal.histogram.items()))
        write_output(options.save_lengths, f"# timesteps:sequences\n{lines}".encode())
        yield f"wrote {options.save_lengths}"
    if options.picture is not None:
        write_output(options.picture, draw(proposal, target, options.picture.suffix))
        yield f"wrote {options.picture}"
