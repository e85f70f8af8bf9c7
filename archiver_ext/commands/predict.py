"""`neuron-lstm predict`: a file of requests, answered without a server."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ...inference.errors import ArchiveError
from . import Commands, add_archive, check_output, positive

if TYPE_CHECKING:
    from ...inference.open_archive import OpenArchive

_STANDARD = Path("-")


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "predict",
        help="answer a file of requests, without a server",
        description="Answer requests, one on each line (JSON Lines), as TorchServe would answer them as bodies. The "
        "answer to a line that is refused is an object with its number, code, type and message, and the exit code is "
        "then 1. Memory does not grow with the number of lines.",
    )
    add_archive(command)
    command.add_argument("requests", type=Path, help="a file, or - for standard input")
    command.add_argument(
        "-o", "--output", type=Path, default=_STANDARD, help="a file, or - for standard output (default)"
    )
    command.add_argument(
        "--threads", type=positive, help="threads of a call (default: as configured, or else all cores)"
    )
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    from ...inference.open_archive import open_archive

    check_output(options.output, options.archive, "the archive")
    check_output(options.output, options.requests, "the file of requests")
    with open_archive(options.archive, options.threads) as model, ExitStack() as files:
        requests = files.enter_context(_open_requests(options.requests))
        answers = files.enter_context(_open_answers(options.output))
        refused, first, lines = _answer(model, requests, answers, files)
    if refused:
        raise ArchiveError(
            f"refused: {refused:,} of {lines:,} lines, the first is line {first}; their answers give the reasons"
        )


def _answer(model: OpenArchive, requests: BinaryIO, answers: BinaryIO, files: ExitStack) -> tuple[int, int, int]:
    """Answer every line. Returns the number of refused lines, the first one, and the number of all lines."""
    report = files.enter_context(_progress(requests))
    lines = refused = first = 0
    for lines, answer in enumerate(model.answer_lines(requests), 1):
        if answer.is_refusal:
            refused += 1
            first = first or lines
        answers.write(answer.text + b"\n")
        report(lines)
    answers.flush()  # while an error still has a message
    return refused, first, lines


def _open_requests(path: Path) -> AbstractContextManager[BinaryIO]:
    if path != _STANDARD:
        return path.open("rb")
    if sys.stdin is None:
        raise ArchiveError("standard input is closed")
    return nullcontext(sys.stdin.buffer)


def _open_answers(path: Path) -> AbstractContextManager[BinaryIO]:
    from ..archive.workspace import open_output

    return nullcontext(sys.stdout.buffer) if path == _STANDARD else open_output(path)


@contextmanager
def _progress(requests: BinaryIO) -> Iterator[Callable[[int], None]]:
    """Show how much of the file was read, or of a stream how many lines, every second or so."""
    from rich.console import Console

    from ..progress import show_progress

    size = os.fstat(requests.fileno()).st_size if requests.seekable() else 0
    with show_progress("predict", Console(stderr=True), every_s=2.0) as report:

        def tell(lines: int) -> None:
            if lines % 1024 == 0:
                report(requests.tell() if size else lines, size or lines, f"{lines:,} lines")

        yield tell
