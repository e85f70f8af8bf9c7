"""`neuron-lstm analyze`: the operators of a model that each engine supports."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import PackagingError
from ..report_parts import make_table, print_lines
from . import Commands, print_note, show

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ...backends.partitioning.cut_analysis import Analysis
    from ...config.schema import ServingConfig
    from ...lowering.program import LoweredModel


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "analyze",
        help="list the operators of a model that each engine supports",
        description="List for each engine the operators of a model that it supports, those that it does not support, "
        "and their lines in the model. Nothing is packaged. For an engine that is not installed, only its "
        "list of operators is used.",
    )
    command.add_argument("--model-file", required=True, type=Path, help="the Python file with the model's class")
    command.add_argument("--config-file", required=True, type=Path, help="its model-config.yaml")
    command.add_argument("--serialized-file", type=Path, help="its weights (default: freshly initialised ones)")
    command.add_argument(
        "--backend", action="append", metavar="NAME", help="an engine; may be given several times (default: all)"
    )
    command.add_argument("--json", action="store_true", help="print a list of one object for each engine")
    command.set_defaults(run=_analyze)


def _analyze(options: argparse.Namespace) -> None:
    analyses = _analyses(*_lower(options), options.backend)
    show(options, lambda: [one.to_json() for one in analyses], lambda console: print_analyses(analyses, console))


def _lower(options: argparse.Namespace) -> tuple[LoweredModel, ServingConfig]:
    from ...config.load import load_config
    from ...lowering import lower
    from ..checkpoint import load_state_dict
    from ..model_class import importable
    from ..user_model import build_model

    config = load_config(options.config_file)
    for file in filter(None, (options.model_file, options.serialized_file)):
        if not file.is_file():
            raise PackagingError(f"there is no file {file}")
    with importable(options.model_file.resolve().parent):
        model = build_model(options.model_file, config.model, print_note)
        if options.serialized_file is not None:
            load_state_dict(model, options.serialized_file, print_note)
        return lower(model, config), config


def _analyses(program: LoweredModel, config: ServingConfig, names: Sequence[str] | None) -> list[Analysis]:
    from ...backends.exported_program import specialize
    from ...backends.interface import Backend, CompileError
    from ...backends.partitioning.cut_analysis import Analysis, analyze_operators
    from ...backends.registry import backend_names, get_backend
    from ...bucketing.shapes import role_buckets
    from ...config.partitioner import PartitionerBlock
    from ...lowering.errors import node_line

    engines = [get_backend(name) for name in dict.fromkeys(names or backend_names())]
    fixed = specialize(program.exported, role_buckets("sequence", config.grid)[0])
    options = config.partitioner_config or PartitionerBlock()

    def analysis(engine: Backend) -> Analysis:
        try:
            return analyze_operators(engine, fixed, options, node_line)
        except CompileError as error:
            return Analysis(engine.name, engine.unavailable(), str(error), None, ())

    return [analysis(engine) for engine in engines]


def print_analyses(analyses: Sequence[Analysis], console: Console) -> None:
    """Print a row for each engine, and below these the operators that the engines do not support."""
    has_unsupported = any(analysis.unsupported for analysis in analyses)
    console.print(_overview(analyses))
    if has_unsupported:
        console.print(_unsupported(analyses))
    for analysis in analyses:
        if analysis.unknown is not None:
            print_lines(console, f"{analysis.backend}: {analysis.unknown}")
        if analysis.not_installed is not None:
            print_lines(console, f"{analysis.backend} cannot be used here: {analysis.not_installed}")
    if has_unsupported:
        print_lines(
            console,
            "operators that an engine does not support can run on the CPU within the same model: name the engine as "
            "backend, and write partitioner_config: {}",
        )


def _overview(analyses: Sequence[Analysis]) -> Table:
    table = make_table("backend", numbers=("supported", "unsupported", "share"))
    table.add_column("remark")
    for analysis in analyses:
        share, remark = analysis.percentage, "" if analysis.not_installed is None else "not installed"
        if analysis.supported is None or share is None:
            table.add_row(analysis.backend, "?", "?", "?", remark)
        else:
            supported = str(sum(analysis.supported.values()))
            table.add_row(analysis.backend, supported, str(len(analysis.unsupported)), f"{share:.1f} %", remark)
    return table


def _unsupported(analyses: Sequence[Analysis]) -> Table:
    """One row for each operator on each line of the model, with its number of occurrences."""
    from rich.markup import escape

    table = make_table("backend", numbers=())
    table.add_column("operator", overflow="fold")
    table.add_column("count", justify="right")
    table.add_column("in the model", overflow="fold")
    table.add_column("reason", overflow="fold")
    for analysis in analyses:
        counts = Counter((one.kind, one.call or "", one.reason) for one in analysis.unsupported)
        for (kind, call, reason), count in counts.items():
            table.add_row(analysis.backend, kind, str(count), escape(call), escape(reason))
        table.add_section()
    return table
