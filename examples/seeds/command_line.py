"""One example on one engine: `python -m examples.seeds.EXAMPLE ENGINE`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import torch

from .engines import engine_named, neuron_stood_in, not_here, what_runs
from .shown import Engine, Shown


def main(show: Callable[[Engine], Shown], arguments: Sequence[str] | None = None) -> int:
    """Run the example and print its results. Returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    with neuron_stood_in():
        return _run(show, engine_named(given[0] if given else "eager"))


def _run(show: Callable[[Engine], Shown], engine: Engine) -> int:
    if (reason := not_here(engine)) is not None:
        print(f"not run: {reason}")
        return 1
    torch.manual_seed(0)
    shown = show(engine)
    print(f"{engine.name} ({what_runs(engine)}): max error {shown.max_error:.1e}, allowed {engine.tolerance:g}")
    if shown.latency_us is not None:
        print(f"latency (compute): {shown.latency_us:.1f} us by the compiler's count")
    for line in shown.refused:
        print(f"refused, as documented: {line}")
    return 0
