"""`neuron-lstm bench`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    command = commands.add_parser(
        "bench",
        help="measure an archive on this machine, with the lengths of your traffic",
        description="Measure an archive on this machine with random inputs: whole batches as they are served, beside "
        "one request at a time and one padded bucket for all. Without TorchServe, and without decoding and encoding.",
    )
    command.add_argument("archive", type=Path, help="a .mar, a .tar.gz or a folder")
    command.add_argument("--lengths", required=True, type=Path, help="a list of lengths (timesteps), or a log")
    command.add_argument("--batch", required=True, type=_positive, metavar="N", help="requests in a batch")
    command.add_argument("--rounds", type=_positive, default=11, help="turns that each way gets (%(default)s)")
    command.add_argument("--threads", type=_positive, help="left out: what the archive says, or all cores")
    command.add_argument("--json", action="store_true", help="print the figures for machines")
    command.set_defaults(run=_bench)


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, got {text}")
    return int(text)


def _bench(options: argparse.Namespace) -> None:
    from rich.console import Console

    from ...config.histogram import LengthsError, read_lengths
    from ..archive.reader import ArchiveReader
    from ..errors import PackagingError
    from .bench_archive import measure_archive, sample_batches
    from .bench_report import print_result, to_json

    try:
        histogram = read_lengths(options.lengths)
    except LengthsError as error:
        raise PackagingError(f"{options.lengths}: {error}") from error
    with ArchiveReader(options.archive).unpacked() as directory:
        found = measure_archive(directory, sample_batches(histogram, options.batch), options.threads, options.rounds)
    if options.json:
        sys.stdout.write(json.dumps(to_json(found), indent=2) + "\n")
    else:
        print_result(found, Console())
