"""`make fuzz`: requests, manifests, session records and tokens from a fuzzer guided by coverage.

Each target has a property that must hold; its file in `fuzz/targets/` states it. For requests it is: never a 500, an
answer that is valid and bounded, and the right answer to a good request of the same batch. The search starts from the
kept corpus in `fuzz/corpus/`. It changes fields, sizes, types, headers and nesting of well-formed inputs, and prefers
inputs that reach new code. Run from the repository's root: `python -m fuzz --minutes 10`. Exits 1 if an input violates
a property; such inputs are kept in `--findings`, each with its traceback. It needs the extra `fuzz`:
`pip install -e '.[fuzz]'`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from .campaign import Budget, TargetResult, fuzz_target, merge
from .corpus import CORPUS, kept_directories
from .line_coverage import measure
from .report import numbers, shown
from .targets.registry import SHARES

NEEDED = ("atheris", "coverage")


def main() -> int:
    """Fuzz the targets one after the other, report, and return 1 if an input violates a property."""
    options = _options()
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        print(
            f"not installed: {', '.join(missing)}. Run pip install -c constraints.txt -e '.[fuzz]' (atheris "
            "has wheels for Linux on x86-64, from Python 3.11 on; the tests replay the corpus without it)",
            file=sys.stderr,
        )
        return 2
    names = options.target or list(SHARES)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as work:
        corpus = options.corpus or Path(work)
        results = {name: _fuzz(name, names, corpus / name, options) for name in names}
        if options.keep:
            for name in names:
                _keep(name, corpus / name, Path(work) / "merged" / name)
        coverage = {name: measure(name, [*kept_directories(name), corpus / name]) for name in names}
    if options.json:
        print(json.dumps(numbers(results, coverage), indent=2))
    else:
        Console().print(shown(results, coverage))
    return 1 if any(result.causes for result in results.values()) else 0


def _fuzz(name: str, names: list[str], corpus: Path, options: argparse.Namespace) -> TargetResult:
    share = SHARES[name] / sum(SHARES[one] for one in names)
    budget = Budget(60 * options.minutes * share, options.runs, options.seed)
    return fuzz_target(name, budget, corpus, options.findings / name, lambda line: print(line, file=sys.stderr))


def _keep(name: str, corpus: Path, smallest: Path) -> None:
    """Replace the kept corpus of a target by the smallest one that reaches as much."""
    merge(name, corpus, smallest)
    shutil.rmtree(CORPUS / name, ignore_errors=True)
    shutil.copytree(smallest, CORPUS / name)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="minutes of all targets together (default: %(default)s)"
    )
    parser.add_argument("--runs", type=int, help="most runs of each target (default: as many as the time allows)")
    parser.add_argument("--target", choices=list(SHARES), action="append", help="only this target; may be repeated")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument(
        "--corpus", type=Path, metavar="FOLDER", help="folder of new inputs, continued (default: discarded)"
    )
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"), metavar="FOLDER",
                        help="folder of inputs that violate a property (default: %(default)s)")  # fmt: skip
    parser.add_argument(
        "--keep", action="store_true", help="put new inputs into fuzz/corpus/, without those that add nothing"
    )
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
