"""`make bench-compare BASE=...`: whether a request takes more CPU time than it did at another commit.

Run from the repository's root: `python -m benchmarks.compare BASE [HEAD]`. Without HEAD, the current working tree is
compared. Both commits run in turns in this one Python environment, each with its own code. Exits 1 if a floor is
missed; the last lines name it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import get_args

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..packaging import CannotArchive
from .archive import packaged, share_costs
from .figures import FIGURES, Compared, SideName, missed
from .interval import fewest
from .process import ChildFailed, Kind
from .race import Subjects, race
from .report import ENOUGH, print_run, to_json
from .same_work import OtherWork
from .sides import NoSuchCommit, Side, checked_out

ROOT = Path(__file__).parents[2]


def main(arguments: Sequence[str] | None = None, repository: Path = ROOT) -> int:
    """Check out, package, measure and report. Returns the exit code."""
    options = _options(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="compare-") as folder,
        checked_out(repository, options.base, options.head, Path(folder)) as (base, head),
    ):
        sides: dict[SideName, Side] = {"base": base, "head": head}
        found = _measured(sides, options.only, options.pairs, Path(folder))
    print_run(sides, found, options.pairs, Console())
    if options.json:
        options.json.write_text(json.dumps(to_json(sides, found, _about(options)), indent=2) + "\n")
    lines = missed(found)
    print("\n".join(lines) or "every floor holds")
    return 1 if lines else 0


def tell(text: str) -> None:
    """Print the progress to standard error, apart from the result."""
    print(text, file=sys.stderr, flush=True)


def _measured(sides: dict[SideName, Side], only: Kind | None, pairs: int, folder: Path) -> list[Compared]:
    subjects: dict[Kind, Subjects] = {}
    if only != "archive":
        subjects["hot_path"] = {name: side.root for name, side in sides.items()}
    if only != "hot_path":
        subjects["archive"] = _archives(sides, folder)
    figures = [figure for figure in FIGURES if figure.kind in subjects]
    tell(f"measuring {pairs} pairs")
    columns = TextColumn("pairs"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=pairs)
        return race(sides, subjects, figures, pairs, lambda: progress.advance(task))


def _archives(sides: dict[SideName, Side], folder: Path) -> Subjects:
    archives = {}
    for name, side in sides.items():
        tell(f"packaging an archive with the code of the {name}")
        archives[name] = packaged(side, folder / f"{name}-archive")
    if not share_costs(archives["base"], archives["head"]):
        tell("the archives state their costs differently: each plans by those measured for itself")
    return archives


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("base", metavar="BASE", help="a commit")
    parser.add_argument("head", metavar="HEAD", nargs="?", help="another one (default: the working tree as it stands)")
    parser.add_argument(
        "--pairs",
        type=int,
        default=ENOUGH,
        help=f"at least {fewest()}, of which a result needs {ENOUGH} (default: %(default)s)",
    )
    parser.add_argument("--only", choices=get_args(Kind), help="this kind of figures alone (default: both)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    options = parser.parse_args(arguments)
    if options.pairs < fewest():
        parser.error(f"--pairs: {options.pairs} pairs have no interval, {fewest()} are the fewest")
    return options


def _about(options: argparse.Namespace) -> dict[str, object]:
    """Describe the machine and settings that the figures depend on."""
    versions = {name: metadata.version(name) for name in ("torch", "torchserve")}
    return {"machine": platform.machine(), "cores": os.cpu_count(), "pairs": options.pairs, "versions": versions}


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the checkouts are removed
    try:
        sys.exit(main())
    except (CannotArchive, ChildFailed, NoSuchCommit, OtherWork) as failed:
        sys.exit(f"the comparison failed: {failed}")
