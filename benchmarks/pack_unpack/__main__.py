"""`make bench-backward`: the cost of packing in training, in eager mode and in a lowered model.

Run from the repository's root: `python -m benchmarks.pack_unpack`. Exits 1 if a floor is missed; the last lines name
it.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from torchserve_neuron_lstm.backends.cores import available_cores

from ..standing import conclude, write_figures
from .contestants import WrongAnswers, calls, cannot_compile, check, contestants
from .experiment import BATCH, PASSES, SETUPS, Classifier, make_batch, varied
from .floors import standings
from .measured import Measured, Run
from .report import draw, print_run, to_json
from .timing import FULL, Effort, cpu_timer, cuda_timer, take_turns

LENGTHS = (32, 64, 128, 256)
ALL_LENGTHS = tuple(range(32, 513, 32))


def main(arguments: list[str] | None = None) -> int:
    """Measure and report. Returns the exit code."""
    began = time.monotonic()
    options = _options(arguments)
    torch.set_num_threads(options.threads)
    run = _run(torch.device(options.device), options)
    found = standings(run)
    print_run(run, found, Console())
    about = _about(options, time.monotonic() - began)
    write_figures(to_json(run, found, about), options.json)
    if options.plot:
        options.plot.mkdir(parents=True, exist_ok=True)
        for setup in SETUPS:
            draw(run, setup, options.plot / f"pack_unpack_{setup}.png")
    return conclude(found)


def tell(text: str) -> None:
    """Print the progress to standard error, apart from the result."""
    print(text, file=sys.stderr, flush=True)


def _run(device: torch.device, options: argparse.Namespace) -> Run:
    torch.manual_seed(0)
    reason = "--no-compile" if options.no_compile else cannot_compile(device)
    if reason:
        tell(f"nothing is compiled: {reason}")
    ways = contestants(Classifier().to(device), compiles=reason is None)
    timer = cpu_timer if device.type == "cpu" else cuda_timer
    effort = FULL if options.full else Effort(rounds=options.rounds, fewest=min(options.rounds, Effort.fewest))
    measured = []
    for longest in options.lengths or (ALL_LENGTHS if options.full else LENGTHS):
        for setup in SETUPS:
            tell(f"measuring setup {setup}, T={longest}")
            batch = make_batch(setup, longest, options.batch, device)
            check(ways, varied(batch))
            for which in PASSES:
                taken = take_turns(calls(ways, batch, which), effort, timer)
                measured.append(Measured(setup, which, longest, taken))
    return Run(_named(device), device.type == "cpu", options.batch, tuple(measured))


def _named(device: torch.device) -> str:
    if device.type == "cpu":
        return f"a CPU ({platform.machine()}, {torch.get_num_threads()} threads)"
    return torch.cuda.get_device_name(device)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pack_unpack", description=__doc__)
    parser.add_argument("--full", action="store_true", help="every length from 32 to 512 in steps of 32, 20 rounds")
    parser.add_argument(
        "--lengths", type=int, nargs="+", metavar="T", help="these lengths (default: 32 64 128 256)", action="extend"
    )
    parser.add_argument("--rounds", type=int, default=Effort.rounds, help="rounds at most (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=available_cores(), help="threads of a CPU (default: all cores)")
    parser.add_argument("--batch", type=int, default=BATCH, help="rows of a batch (default: %(default)s)")
    parser.add_argument(
        "--device",
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="where to measure (default: a GPU if there is one, else cpu)",
    )
    parser.add_argument("--no-compile", action="store_true", help="leave out what torch.compile makes of our model")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="draw a PNG for each setup; needs matplotlib")
    options = parser.parse_args(arguments)
    if options.plot and find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install matplotlib")
    return options


def _about(options: argparse.Namespace, took_s: float) -> dict[str, Any]:
    """Describe the machine and settings that the figures depend on."""
    versions = {name: metadata.version(name) for name in ("torch", "torchserve-neuron-lstm")}
    return {"full": options.full, "threads": torch.get_num_threads(), "versions": versions, "took_s": round(took_s)}


if __name__ == "__main__":
    try:
        sys.exit(main())
    except WrongAnswers as failed:
        sys.exit(f"the benchmark failed: {failed}")
