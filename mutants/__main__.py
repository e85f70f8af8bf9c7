"""`make mutants`: whether the tests notice a change of the code.

cosmic-ray replaces an operator, a number or a name; the tests of the file must then fail. A sample of such mutants is
drawn from each area, each tried in a copy of the repository. A survivor is either behaviour that no test checks, or
harmless: `mutants/survivors.yaml` has those that were found, with the test that kills each now, or the reason why none
can. Run from the repository's root: `python -m mutants --sample 60`. Exits 1 if a mutant survives that the file does
not explain. It needs the extra `mutants`: `pip install -e '.[mutants]'`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import track

from .areas import AREAS, Area
from .survivors import harmless_changes
from .trial import Outcome, Tree

if TYPE_CHECKING:
    from .mutant import Mutant

ROOT = Path(__file__).resolve().parents[1]
_PATIENCE = 3.0
"""Times the seconds of the unchanged code after which tests are too slow, so noticed."""
_START_SECONDS = 60.0
_ERRORS = Console(stderr=True)


def main() -> int:
    """Draw, try and report. Returns the exit code."""
    options = _options()
    if find_spec("cosmic_ray") is None:
        print("not installed: cosmic-ray. Run pip install -c constraints.txt -e '.[mutants]'", file=sys.stderr)
        return 2
    found = {name: _try_mutants(name, options) for name in options.area or list(AREAS)}
    alive = {name: [mutant for mutant, outcome in tried if outcome == "survived"] for name, tried in found.items()}
    counts = {name: dict(Counter(outcome for _, outcome in tried)) for name, tried in found.items()}
    if options.json:
        told = {name: [{**asdict(one.change), "line": one.line} for one in alive[name]] for name in found}
        print(json.dumps({"outcomes": counts, "survivors": told}, indent=2))
    else:
        _print(counts, alive)
    return 1 if any(alive.values()) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("--area", action="append", choices=list(AREAS), help="only this area; may be repeated")
    parser.add_argument("--sample", type=int, default=60, help="mutants of each area (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample (default: %(default)s)")
    parser.add_argument(
        "--jobs", type=int, default=len(os.sched_getaffinity(0)), help="copies at once (default: one a core)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


def _try_mutants(name: str, options: argparse.Namespace) -> list[tuple[Mutant, Outcome]]:
    """Run the tests on the mutants of the area that are not known as harmless; return how each ended."""
    from .mutant import draw_mutants

    area, known = AREAS[name], harmless_changes()
    drawn = draw_mutants(ROOT, area.files(ROOT), options.sample, options.seed)
    mutants = [one for one in drawn if (one.change.file, one.change.before, one.change.after) not in known]
    with tempfile.TemporaryDirectory(prefix="mutants-") as work:
        trees = [Tree(ROOT, Path(work) / str(number)) for number in range(options.jobs)]
        tried = _outcomes(trees, area, mutants, _limit(trees[0], area))
        return list(_told(track(tried, name, len(mutants), console=_ERRORS)))


def _told(tried: Iterable[tuple[Mutant, Outcome]]) -> Iterator[tuple[Mutant, Outcome]]:
    """Print each survivor when it is found: a sample takes an hour."""
    for mutant, outcome in tried:
        if outcome == "survived":
            _ERRORS.print(_text(mutant), markup=False, highlight=False, soft_wrap=True)
        yield mutant, outcome


def _limit(tree: Tree, area: Area) -> float:
    """The seconds after which a mutant's tests are stopped.

    Raises:
        RuntimeError: a test fails with the code as it is.
    """
    started = time.monotonic()
    if tree.run(area.tests, 3600) != "survived":
        raise RuntimeError(f"a test of the unchanged code fails: pytest {' '.join(area.tests)}")
    return _START_SECONDS + _PATIENCE * (time.monotonic() - started)


def _outcomes(
    trees: Sequence[Tree], area: Area, mutants: Sequence[Mutant], limit: float
) -> Iterator[tuple[Mutant, Outcome]]:
    free: SimpleQueue[Tree] = SimpleQueue()
    for tree in trees:
        free.put(tree)

    def outcome(mutant: Mutant) -> Outcome:
        tree = free.get()
        try:
            with tree.changed(mutant.change.file, mutant.text):
                return tree.run(area.tests_of(mutant.change.file, tree.folder), limit)
        finally:
            free.put(tree)

    with ThreadPoolExecutor(len(trees)) as threads:
        yield from zip(mutants, threads.map(outcome, mutants), strict=True)


def _print(counts: dict[str, dict[Outcome, int]], alive: dict[str, list[Mutant]]) -> None:
    for name, outcomes in counts.items():
        print(f"{name}: " + ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items())))
        print(*map(_text, alive[name]), sep="\n")


def _text(mutant: Mutant) -> str:
    before = [f"    - {line}" for line in mutant.change.before.splitlines()]
    after = [f"    + {line}" for line in mutant.change.after.splitlines()]
    return "\n".join([f"  {mutant.change.file}:{mutant.line}", *before, *after])


if __name__ == "__main__":
    sys.exit(main())
