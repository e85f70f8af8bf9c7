"""`make seeds`: every example of the NeuronX tracing and Vollo LSTM documentation, on every engine.

Run from the repository's root: `python -m examples.seeds [--json FILE] [--engine NAME] [--example NAME]`.
Each line names the source of the answers. Exits 1 if an example that ran fails.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from . import any_batch, bucketed, function, lstm, module, partitioned, separate_weights, streaming_lstm
from .engines import ENGINES, engine_named, neuron_stood_in
from .row import Row, row_of
from .shown import Engine, Shown

_WIDTH = 150
"""The width of the table where it goes to a file: lines are not broken then."""

APART = ("eager", "native", "onnxruntime", "openvino", "inductor", "neuronx")
"""Engines that keep weights apart from their programs, and support embeddings."""
ALL = (*APART, "neuron")


class Example(NamedTuple):
    """An example, and the engines that support it."""

    name: str
    show: Callable[[Engine], Shown]
    engines: tuple[str, ...]
    notes: dict[str, str]
    """The text to print beside an engine's own figures."""


EXAMPLES = (
    Example("function", function.show, ALL, {}),
    Example("module", module.show, ALL, {}),
    Example("separate weights", separate_weights.show, APART, {}),
    Example("bucketed", bucketed.show, (*APART, "vollo"), {}),
    Example("any batch", any_batch.show, ALL, {}),
    Example("partitioned", partitioned.show, ALL, {}),
    Example("lstm", lstm.show, (*ALL, "vollo"), {"vollo": "6.9 us by release 29.0.0"}),
    Example("streaming lstm", streaming_lstm.show, (*ALL, "vollo"), {"vollo": "0.7 us a step by release 29.0.0"}),
)


def main(arguments: list[str] | None = None) -> int:
    """Run the examples and report. Returns the exit code."""
    options = _options(arguments)
    with neuron_stood_in():
        rows = list(_rows(options))
    _print(rows, Console(width=None if sys.stdout.isatty() else _WIDTH))
    if options.json:
        options.json.write_text(json.dumps(_as_json(rows), indent=2) + "\n", encoding="utf-8")
    failed = [row for row in rows if row.status == "failed"]
    ran = [row for row in rows if row.status != "not run"]
    print(f"{len(ran) - len(failed)} of {len(ran)} that ran hold, {len(rows) - len(ran)} were not run")
    return 1 if failed or not ran else 0


def _quieten() -> None:
    """Silence warnings in this process: each line names its simulation, and compilers run side by side."""
    warnings.simplefilter("ignore", DeprecationWarning)  # torch's own: it deprecates torch.jit, which kernels use
    logging.getLogger("torchserve_neuron_lstm").setLevel(logging.ERROR)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.seeds", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every row there as well")
    names = [engine.name for engine in ENGINES]
    parser.add_argument("--engine", action="append", choices=names, help="only this one; may be given again")
    examples = [example.name for example in EXAMPLES]
    parser.add_argument("--example", action="append", choices=examples, help="only this one; may be given again")
    return parser.parse_args(arguments)


def _rows(options: argparse.Namespace) -> Iterator[Row]:
    todo = [
        (example, name)
        for example in EXAMPLES
        if not options.example or example.name in options.example
        for name in example.engines
        if not options.engine or name in options.engine
    ]
    for place, (example, name) in enumerate(todo, 1):
        _tell(f"{place}/{len(todo)} {example.name} on {name}")
        row = row_of(example.name, example.show, engine_named(name), example.notes.get(name, ""))
        if row.status == "failed":
            _tell(f"  failed: {row.note}")
        yield row


def _tell(text: str) -> None:
    """Print the progress to standard error, apart from the result."""
    print(text, file=sys.stderr, flush=True)


def _print(rows: list[Row], console: Console) -> None:
    table = Table(title="Every example, compared with eager mode", title_justify="left", box=None)
    for name in ("example", "engine", "ran by"):
        table.add_column(name, no_wrap=True)
    for name in ("max error", "allowed", "refused"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("")
    for row in rows:
        error = "" if row.max_error is None else f"{row.max_error:.1e}"
        allowed = "" if row.tolerance is None else f"{row.tolerance:g}"
        refused = str(len(row.refused) or "")
        table.add_row(row.example, row.engine, row.ran, error, allowed, refused, row.status, escape(row.note))
    console.print(table, highlight=False)
    console.print("refused: calls that were refused as documented; their words are in --json", highlight=False)


def _as_json(rows: list[Row]) -> dict[str, Any]:
    about = {"python": platform.python_version(), "torch": torch.__version__, "machine": platform.machine()}
    return {"about": about, "rows": [asdict(row) for row in rows]}


if __name__ == "__main__":
    _quieten()
    sys.exit(main())
