"""Lines of the decoders that inputs reach: `python -m fuzz.line_coverage TARGET FOLDER...`."""

from __future__ import annotations

import ast
import json
import logging
import subprocess
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .campaign import ROOT, environment
from .corpus import read_inputs


@dataclass(frozen=True)
class FileCoverage:
    """Lines of one file."""

    lines: int
    """Lines with a statement."""
    missed: tuple[int, ...]
    """Those that no input reaches."""

    @property
    def percent(self) -> float:
        """The reached share of the lines."""
        return 100.0 * (self.lines - len(self.missed)) / max(1, self.lines)


def measure(target: str, directories: Sequence[Path]) -> dict[str, FileCoverage]:
    """Return the coverage of each decoder of a target by the inputs of some folders.

    Raises:
        RuntimeError: the process failed; with the end of what it wrote.
    """
    command = [sys.executable, "-m", "fuzz.line_coverage", target, *map(str, directories)]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the coverage of {target} could not be measured:\n{done.stderr[-2000:]}")
    files = json.loads(done.stdout)
    return {name: FileCoverage(lines, tuple(missed)) for name, (lines, missed) in files.items()}


def main() -> None:
    """Run every input of the folders, and print lines and missed lines of each decoder."""
    import coverage

    measured = coverage.Coverage(data_file=None, include=[f"{ROOT}/*"], omit=[f"{ROOT}/fuzz/*", f"{ROOT}/tests/*"])
    measured.start()  # before the decoders are imported: their definitions are lines too
    from .targets.registry import load_target

    logging.getLogger("torchserve_neuron_lstm").addHandler(logging.NullHandler())
    target = load_target(sys.argv[1])
    for _, content in read_inputs([Path(folder) for folder in sys.argv[2:]]):
        with suppress(Exception):  # the search has reported violations; their lines count as reached too
            target.check(content)
    measured.stop()
    found: dict[str, tuple[int, list[int]]] = {}
    for name, besides in target.decoders.items():
        _, lines, _, missed, _ = measured.analysis2(str(ROOT / name))
        left_out = lines_of((ROOT / name).read_text("utf-8"), besides)
        found[name] = (len(set(lines) - left_out), sorted(set(missed) - left_out))
    print(json.dumps(found))


def lines_of(source: str, names: Collection[str]) -> set[int]:
    r"""Return the lines of the functions and classes of these names.

    >>> lines_of("def f():\n    pass\n\n\nclass A:\n    def g(self):\n        pass\n", ["f", "g"])
    {1, 2, 6, 7}

    Raises:
        ValueError: there is none of a name.
    """
    kinds = (ast.FunctionDef, ast.ClassDef)
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds) and node.name in names]
    missing = set(names) - {node.name for node in found}
    if missing:
        raise ValueError(f"there is no function or class {', '.join(sorted(missing))}")
    return {line for node in found for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


if __name__ == "__main__":
    main()
