"""`neuron-lstm tune`: bucket lengths that fit the traffic."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from functools import partial, reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import PackagingError
from . import positive, print_json

if TYPE_CHECKING:
    from ...config.manifest import Manifest
    from ...config.schema import ServingConfig
    from .tuning.proposal import Proposal

_MAX_COUNT = 256
_STDIN = "-"


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "tune",
        help="find bucket lengths that fit the traffic",
        description="Find the bucket lengths with the least padding for observed lengths, show how much they save, and "
        "write them into model-config.yaml.",
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
    command.add_argument(
        "--count",
        type=partial(positive, largest=_MAX_COUNT),
        metavar="N",
        help="number of lengths (default: the current number, or 8)",
    )
    command.add_argument("--longest", type=positive, metavar="N", help="the longest sequence to accept")
    command.add_argument(
        "--objective", choices=("cost", "timesteps"), help="quantity to minimise (default: cost if --archive is given)"
    )
    command.add_argument("-o", "--output", type=Path, metavar="YAML", help="write --config with the new lengths here")
    command.add_argument("-f", "--force", action="store_true", help="overwrite an output that is not --config itself")
    command.add_argument("--picture", type=_picture, metavar="FILE", help="draw it: .html, or .png with matplotlib")
    command.add_argument("--save-lengths", type=Path, metavar="FILE", help="write the lengths, for `histogram:`")
    command.add_argument("--json", action="store_true", help="print the figures as JSON")
    command.set_defaults(run=_tune)


def _picture(text: str) -> Path:
    if Path(text).suffix not in (".png", ".html"):
        raise argparse.ArgumentTypeError(f"expected a file that ends in .html or .png, got {text}")
    return Path(text)


def _tune(options: argparse.Namespace) -> None:
    from rich.console import Console

    from .tuning.proposal import print_proposal

    _check_options(options)
    proposal, notes = _propose(options, _read(options.lengths, options.model))
    changed = None if options.output is None else _changed_text(options.config, proposal)
    if options.json:
        print_json(proposal.to_json())
    else:
        print_proposal(proposal, Console())
    if not options.json and changed is None:
        sys.stdout.write(f"neuron_lstm:\n  buckets:\n    length: {list(proposal.proposed.lengths)}\n")
    for line in (*notes, *_write(options, proposal, changed)):
        sys.stderr.write(f"{line}\n")


def _check_options(options: argparse.Namespace) -> None:
    """Refuse options that contradict each other, before anything is read."""
    if options.output is not None:
        if options.config is None:
            raise PackagingError("-o needs --config: the file whose lengths it changes")
        if options.output.exists() and not (options.force or options.output.resolve() == options.config.resolve()):
            raise PackagingError(f"{options.output} exists; give --force to overwrite it")
    if options.objective == "cost" and options.archive is None:
        raise PackagingError("--objective cost needs --archive: it has the measured costs")
    if options.picture is not None and options.picture.suffix == ".png":
        from .tuning.png import require_matplotlib

        require_matplotlib()


def _read(files: Iterable[str], model: str | None) -> dict[int, int]:
    from ...config.histogram import LengthsError, parse_lengths

    observed = []
    for file in files:
        if file != _STDIN and not Path(file).is_file():
            raise PackagingError(f"there is no file {file}: give a file of lengths or a log, or - for standard input")
        data = sys.stdin.buffer.read() if file == _STDIN else Path(file).read_bytes()
        try:
            observed.append(parse_lengths(data))
        except LengthsError as error:
            raise PackagingError(f"{'standard input' if file == _STDIN else file}: {error}") from error
    try:
        return reduce(add, observed).histogram(model)
    except LengthsError as error:
        raise PackagingError(f"{error}: give --model") from error


def _propose(options: argparse.Namespace, histogram: dict[int, int]) -> tuple[Proposal, list[str]]:
    """Return the proposal and notes for the user."""
    from ...bucketing.bucket_lengths import cost_per_row
    from ...bucketing.cost import CostModel
    from ...config.load import load_config
    from ...inference.reader import ArchiveReader
    from .tuning.proposal import propose

    config = None if options.config is None else load_config(options.config)
    manifest = None if options.archive is None else ArchiveReader(options.archive).manifest()
    _require_tunable_lengths(config, manifest, options)
    source = config or manifest
    costs = {} if manifest is None else {c.bucket: c.milliseconds for c in manifest.costs if c.part == manifest.kind}
    try:
        proposal = propose(
            histogram,
            current=() if source is None else source.grid.lengths,
            count=options.count,
            longest=options.longest or (source.grid.lengths[-1] if source is not None and _beyond(source) else None),
            cost=cost_per_row(CostModel(costs), manifest.grid.batches[-1]) if manifest and costs else None,
            objective=options.objective,
            truncate=source is not None and source.overflow == "truncate",
        )
    except ValueError as error:
        raise PackagingError(str(error)) from error
    return proposal, list(_notes(source, manifest))


def _require_tunable_lengths(
    config: ServingConfig | None, manifest: Manifest | None, options: argparse.Namespace
) -> None:
    without = [
        *([options.config] if config is not None and config.buckets.length is None else []),
        *([options.archive] if manifest is not None and all(spec.time_dim is None for spec in manifest.inputs) else []),
    ]
    if without:
        raise PackagingError(f"{without[0]}: no input has a time dimension, so there are no lengths to tune")
    if manifest is not None and manifest.padding == "exact_lengths":
        raise PackagingError(
            f"{options.archive}: padding would change the outputs of this model ({manifest.padding_reason}), so it is "
            f"served only at the lengths of its buckets: choose these yourself"
        )


def _beyond(source: ServingConfig | Manifest) -> bool:
    """Whether sequences beyond the largest length are served, in chunks or in dynamic shapes."""
    return source.longest > source.grid.lengths[-1]


def _notes(source: ServingConfig | Manifest | None, manifest: Manifest | None) -> Iterator[str]:
    if source is not None and _beyond(source):
        yield f"note: sequences of up to {source.longest} timesteps are served too; they are not counted here"
    if manifest is not None and manifest.shapes == "any":
        yield f"note: {manifest.backend} takes every length: it pads no sequence to these"
    elif manifest is not None and manifest.kind == "chunk":
        yield "note: this model runs in chunks of time: a sequence takes several calls, with less padding than shown"


def _changed_text(config: Path, proposal: Proposal) -> str:
    from ...config.edit import replace_lengths

    return replace_lengths(config.read_bytes().decode(), str(config), proposal.proposed.lengths, config.parent)


def _write(options: argparse.Namespace, proposal: Proposal, changed: str | None) -> Iterator[str]:
    """Write the requested files, and yield a line for each."""
    if changed is not None:
        options.output.write_bytes(changed.encode())
        yield f"wrote {options.output}"
    if options.save_lengths is not None:
        lines = "".join(f"{length}:{number}\n" for length, number in sorted(proposal.histogram.items()))
        options.save_lengths.write_text(f"# timesteps:sequences\n{lines}", encoding="utf-8")
        yield f"wrote {options.save_lengths}"
    if options.picture is not None:
        _draw(proposal, options.picture)
        yield f"wrote {options.picture}"


def _draw(proposal: Proposal, file: Path) -> None:
    from .tuning.chart import make_chart

    if file.suffix == ".png":
        from .tuning.png import write_png

        write_png(make_chart(proposal), file)
    else:
        from .tuning.html import html_page

        file.write_text(html_page(make_chart(proposal), proposal), encoding="utf-8")
