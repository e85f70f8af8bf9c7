"""Benchmarks of this project: `python -m tools.bench PROGRAM`, from the repository's root.

Run them on a machine that does nothing else: figures from a busy one mean nothing. docs/benchmarks.md describes each
program and has its figures. All take `--json FILE` and write the same format.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from .harness import BenchmarkFailed
from .report import about_run, text_of

PROGRAMS = ("engines", "serve", "train", "hosts", "gpu", "compare")


def main(arguments: Sequence[str]) -> int:
    """Measure and report. Returns the exit code."""
    if not arguments or arguments[0] not in PROGRAMS:
        print(f"{__doc__}\nPROGRAM: {', '.join(PROGRAMS)}; each has --help", file=sys.stderr)
        return 2
    name = arguments[0]
    program = import_module(f"tools.bench.{name}")  # one alone: each needs other packages
    parser = argparse.ArgumentParser(
        prog=f"python -m tools.bench {name}",
        description=program.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    program.add_options(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    options = parser.parse_args(arguments[1:])
    try:
        result = program.measure(options)
    except BenchmarkFailed as failed:
        print(f"the benchmark failed: {failed}", file=sys.stderr)
        return 1
    print(text_of(result))
    if options.json is not None:
        figures = {"program": name, "about": about_run(), **asdict(result)}
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that folders and servers of the run are removed
    sys.exit(main(sys.argv[1:]))
