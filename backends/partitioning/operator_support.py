"""Which operators of a program an engine takes: by its own word, or else by trying each of them alone."""

from __future__ import annotations

import multiprocessing
import operator
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ...bucketing.shapes import Bucket
from ...config.partitioner import PartitionerConfig
from ..interface import DEFAULTS, Backend, CompileError, CompileSettings, Selective
from .partition import example_input, exported_quietly, operator_name, operators_of, queried_operators

RejectionReasons = Mapping[torch.fx.Node, str | None]
"""For each operator of a graph why an engine does not take it; None where it does."""


def unsupported_operators(
    engine: Backend,
    program: torch.export.ExportedProgram,
    bucket: Bucket,
    config: PartitionerConfig | None = None,
    settings: CompileSettings = DEFAULTS,
) -> RejectionReasons:
    """Ask an engine about every operator of a program of fixed sizes but those that `config` has it not asked about.

    An engine that is not `Selective` compiles each different call alone, as many at once as `config` says.
    """
    config = config or PartitionerConfig()
    nodes = queried_operators(operators_of(program.graph), config)
    if isinstance(engine, Selective):
        return {node: engine.refusal(node) for node in nodes}
    return _probe_by_compiling(engine, nodes, None if engine.polymorphic else bucket, config, settings)


def single_operator_program(node: torch.fx.Node) -> torch.export.ExportedProgram:
    """One call of a program of fixed sizes as a program, with the tensors it takes as inputs.

    Raises:
        CompileError: it takes what is no tensor.
    """
    graph = torch.fx.Graph()
    copies = {source: graph.placeholder(f"input_{index}") for index, source in enumerate(node.all_input_nodes)}
    call = graph.node_copy(node, lambda source: copies[source])
    graph.output(tuple(_tensors(graph, call, node.meta["val"])))
    examples = tuple(example_input(source) for source in copies)
    return exported_quietly(torch.fx.GraphModule(torch.nn.Module(), graph), examples)


def _tensors(graph: torch.fx.Graph, call: torch.fx.Node, value: Any) -> list[torch.fx.Node]:
    """The tensors among the results of a call."""
    if isinstance(value, torch.Tensor):
        return [call]
    return [
        graph.call_function(operator.getitem, (call, index))
        for index, one in enumerate(value)
        if isinstance(one, torch.Tensor)
    ]


def _probe_by_compiling(
    engine: Backend,
    nodes: Sequence[torch.fx.Node],
    bucket: Bucket | None,
    config: PartitionerConfig,
    settings: CompileSettings,
) -> RejectionReasons:
    """Each different call is compiled once: programs repeat the same few."""
    first: dict[str, torch.fx.Node] = {}
    for node in nodes:
        first.setdefault(_kind(node), node)
    with _workdir(config) as workdir:
        tries = []
        reasons: dict[str, str | None] = {}
        for index, (kind, node) in enumerate(first.items()):
            place = workdir / f"{index}_{operator_name(node).replace('::', '_')}"
            try:
                program = single_operator_program(node)
            except CompileError as error:
                reasons[kind] = str(error)
            else:
                tries.append((kind, _Try(engine, _saved(program, place), bucket, place, settings)))
        answers = _answers([one for _, one in tries], config.max_workers)
        reasons.update(zip([kind for kind, _ in tries], answers, strict=True))
    return {node: reasons[_kind(node)] for node in nodes}


def _kind(node: torch.fx.Node) -> str:
    """Calls of which an engine takes all or none: of one operator, with the same layouts and the same numbers."""

    def layout(source: torch.fx.Node) -> str:
        value = source.meta["val"]
        return f"{value.dtype}{list(value.shape)}" if isinstance(value, torch.Tensor) else "other"

    return repr((str(node.target), *torch.fx.map_arg((node.args, dict(node.kwargs)), layout)))


@contextmanager
def _workdir(config: PartitionerConfig) -> Iterator[Path]:
    """Where operators are compiled: what is left in a folder that `config` names stays there."""
    if config.analyze_workdir is None:
        with tempfile.TemporaryDirectory(prefix="analyze-") as scratch:
            yield Path(scratch)
    else:
        config.analyze_workdir.mkdir(parents=True, exist_ok=True)
        yield Path(tempfile.mkdtemp(prefix="analyze-", dir=config.analyze_workdir))


class _Try(NamedTuple):
    """One operator to compile."""

    engine: Backend
    program: Path
    bucket: Bucket | None
    place: Path
    settings: CompileSettings


def _saved(program: torch.export.ExportedProgram, place: Path) -> Path:
    place.mkdir()
    file = place / "operator.pt2"
    torch.export.save(program, file)
    return file


def _answers(tries: Sequence[_Try], workers: int) -> list[str | None]:
    """The outcome of each, in order. Several at once are processes: exporters and compilers are not for threads."""
    if workers == 1:
        return [_try(one) for one in tries]
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(_try, one) for one in tries]
        return [f"{future.exception()}" if future.exception() else future.result() for future in futures]


def _try(one: _Try) -> str | None:
    """Why the engine does not compile one operator."""
    compiled, files = one.place / "compiled", one.place / "workdir"
    compiled.mkdir()
    settings = one.settings
    if settings.workdir is not None:
        files.mkdir()
        settings = replace(settings, workdir=files)
    try:
        one.engine.compile(torch.export.load(one.program), one.bucket, compiled, settings)
    except CompileError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - an engine's own failure: it cannot take this operator either
        return f"the engine fails on it ({type(error).__name__}: {error})"
    return None
