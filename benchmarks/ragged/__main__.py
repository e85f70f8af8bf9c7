"""`make bench`: the engine's share of the cores' multiply-adds on ragged batches, and that of others.

Run from the repository's root: `python -m benchmarks.ragged`. Exits 1 if a floor is missed; the last lines name it.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

# Both are read when the libraries are first imported.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # the exporter warns about shapes that it does not infer
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import torch
from rich.console import Console

from torchserve_neuron_lstm.archiver_ext.commands.timing import TimingConfig
from torchserve_neuron_lstm.backends.cores import available_cores

from ..fma.loop import CannotCompile
from ..packaging import CannotArchive
from ..standing import conclude, write_figures
from .cases import CASES
from .floors import standings
from .race import WrongAnswers, race
from .report import draw, print_run, to_json


def main() -> int:
    """Measure and report. Returns the exit code."""
    options = _options()
    threads = available_cores()
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        run = race(CASES, Path(folder), options.backend, threads, TimingConfig(options.rounds), tell)
    found = standings(run)
    print_run(run, found, Console())
    write_figures(to_json(run, found, _about(threads, options)), options.json)
    if options.plot:
        draw(run, options.plot)
    return conclude(found)


def tell(text: str) -> None:
    """Print the progress to standard error, apart from the result."""
    print(text, file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ragged", description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=TimingConfig.rounds, help="turns of each contestant (default: %(default)s)"
    )
    parser.add_argument("--backend", default="native", help="the engine of the archives (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the rates there; needs matplotlib")
    options = parser.parse_args()
    if options.plot and find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install matplotlib")
    return options


def _about(threads: int, options: argparse.Namespace) -> dict[str, object]:
    """Describe the machine and settings that the figures depend on."""
    versions = {name: metadata.version(name) for name in ("torch", "onnxruntime", "torchserve-neuron-lstm")}
    return {
        "machine": platform.machine(),
        "threads": threads,
        "backend": options.backend,
        "rounds": options.rounds,
        "versions": versions,
    }


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (CannotArchive, CannotCompile, WrongAnswers) as failed:
        sys.exit(f"the benchmark failed: {failed}")
