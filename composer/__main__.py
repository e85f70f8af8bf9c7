"""`make compose`: random composed models are lowered, and compared with eager mode.

`composer/compose.py` says how a model is drawn. Each is lowered in this process; an accepted one runs ragged batches
with garbage in the padding, garbage rows, permuted rows and the extreme lengths. A line of JSON for each seed is
written to the file, and seeds that are in it are skipped, so the command can be stopped and continued. Run from the
repository's root: `python -m composer --seeds 0:2000 --out composed.jsonl`. Exits 1 if an answer is wrong, if lowering
or a program fails in another way than by a refusal, or if less than `--floor` of the models are accepted.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track

from .compose import compose
from .record import append, read
from .summary import shown, summary
from .verdict import BATCHES, judge


def main() -> int:
    """Judge the seeds, print the summary, and return 1 if there is a failure."""
    options = _options()
    torch.set_num_threads(1)
    seeds = range(*options.seeds)
    if options.show:
        for seed in seeds:
            composed = compose(seed)
            print(f"seed {seed}: {', '.join(composed.features)}\n{composed.yaml}{composed.model}")
        return 0
    errors = Console(stderr=True)
    waiting = [seed for seed in seeds if seed not in read(options.out, seeds)]
    for seed in track(waiting, f"{len(seeds) - len(waiting)} seeds are done", console=errors):
        append(options.out, judge(seed, options.batches))
    numbers = summary(list(read(options.out, seeds).values()))
    if options.json:
        print(json.dumps(numbers, indent=2))
    else:
        Console().print(shown(numbers))
    return 1 if numbers["failures"] or numbers["accepted_share"] < options.floor else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m composer", description=__doc__)
    parser.add_argument(
        "--seeds", type=_range, default=(0, 2000), metavar="FIRST:END", help="range of seeds (default: 0:2000)"
    )
    parser.add_argument("--out", type=Path, default=Path("composed.jsonl"), metavar="FILE",
                        help="file of verdicts, continued (default: %(default)s)")  # fmt: skip
    parser.add_argument("--batches", type=int, default=BATCHES, help="batches of each model (default: %(default)s)")
    parser.add_argument("--floor", type=float, default=0.0, metavar="SHARE",
                        help="least share of accepted models (default: %(default)s)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument("--show", action="store_true", help="print the models only")
    return parser.parse_args()


def _range(text: str) -> tuple[int, int]:
    first, _, end = text.partition(":")
    if not first.isdigit() or not end.isdigit() or int(first) >= int(end):
        raise argparse.ArgumentTypeError(f"expected FIRST:END with FIRST below END, such as 0:2000, got {text!r}")
    return int(first), int(end)


if __name__ == "__main__":
    sys.exit(main())
