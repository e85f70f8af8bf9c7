"""Operators of a program that an engine supports: by its list, or by compiling each of them alone."""

from __future__ import annotations

import multiprocessing
import operator
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, GraphModule, Node

from ...bucketing.shapes import Bucket
from ...config.partitioner import PartitionerConfig
from ..interface import DEFAULTS, Backend, CompileError, CompileSettings
from ..torch_files import torch_file
from .operator_names import example_input, export_module, operator_name, operators_of, queried_operators

RejectionReasons = Mapping[Node, str | None]
"""Reason for each operator of a graph that an engine does not support it; None if it does."""


def unsupported_operators(
    engine: Backend,
    program: torch.export.ExportedProgram,
    bucket: Bucket,
    config: PartitionerConfig | None = None,
    settings: CompileSettings = DEFAULTS,
) -> RejectionReasons:
    """Query an engine about every operator of a program of fixed sizes that `config` does not ignore.

    An engine that does not list its operators compiles each distinct call alone, `config.max_workers` at a time.
    """
    config = config or PartitionerConfig()
    nodes = queried_operators(operators_of(program.graph), config)
    if engine.lists_operators():
        return {node: engine.refusal(node) for node in nodes}
    return _probe_by_compiling(engine, nodes, None if engine.polymorphic else bucket, config, settings)


def single_operator_program(node: Node) -> torch.export.ExportedProgram:
    """Export one call of a program of fixed sizes as a separate program, with tensors as inputs.

    Raises `CompileError`: an argument is computed and not a tensor.
    """
    graph = Graph()
    copies = {source: graph.placeholder(f"input_{index}") for index, source in enumerate(node.all_input_nodes)}
    call = graph.node_copy(node, lambda source: copies[source])
    graph.output(tuple(_tensors(graph, call, node.meta["val"])))
    examples = tuple(example_input(source) for source in copies)
    return export_module(GraphModule(torch.nn.Module(), graph), examples)


def _tensors(graph: Graph, call: Node, value: Any) -> list[Node]:
    """Return the tensors among the results of a call."""
    if isinstance(value, torch.Tensor):
        return [call]
    indices = [index for index, one in enumerate(value) if isinstance(one, torch.Tensor)]
    return [graph.call_function(operator.getitem, (call, index)) for index in indices]


def _probe_by_compiling(
    engine: Backend, nodes: Sequence[Node], bucket: Bucket | None, config: PartitionerConfig, settings: CompileSettings
) -> RejectionReasons:
    """Compile each distinct call once: programs repeat the same few."""
    first: dict[str, Node] = {}
    for node in nodes:
        first.setdefault(_kind(node), node)
    with _workdir(config) as workdir:
        probes = []
        reasons: dict[str, str | None] = {}
        for index, (kind, node) in enumerate(first.items()):
            directory = workdir / f"{index}_{operator_name(node).replace('::', '_')}"
            try:
                program = single_operator_program(node)
            except CompileError as error:
                reasons[kind] = str(error)
            else:
                probes.append((kind, _Probe(engine, _save(program, directory), bucket, directory, settings)))
        results = _run_probes([probe for _, probe in probes], config.max_workers)
        reasons.update(zip([kind for kind, _ in probes], results, strict=True))
    return {node: reasons[_kind(node)] for node in nodes}


def _kind(node: Node) -> str:
    """Return a key that calls share of which an engine supports all or none.

    They have the same operator, the same shapes and dtypes, and the same numbers as arguments.
    """

    def layout(source: Node) -> str:
        value = source.meta["val"]
        return f"{value.dtype}{list(value.shape)}" if isinstance(value, torch.Tensor) else "other"

    return repr((str(node.target), *torch.fx.map_arg((node.args, dict(node.kwargs)), layout)))


@contextmanager
def _workdir(config: PartitionerConfig) -> Iterator[Path]:
    """Return a directory for compilations; files remain only in a directory that `config` names."""
    if config.analyze_workdir is None:
        with tempfile.TemporaryDirectory(prefix="analyze-") as scratch:
            yield Path(scratch)
    else:
        config.analyze_workdir.mkdir(parents=True, exist_ok=True)
        yield Path(tempfile.mkdtemp(prefix="analyze-", dir=config.analyze_workdir))


class _Probe(NamedTuple):
    """One operator to compile."""

    engine: Backend
    program: Path
    bucket: Bucket | None
    directory: Path
    settings: CompileSettings


def _save(program: torch.export.ExportedProgram, directory: Path) -> Path:
    directory.mkdir()
    file = directory / "operator.pt2"
    with torch_file(file) as opened:
        torch.export.save(program, opened)
    return file


def _run_probes(probes: Sequence[_Probe], workers: int) -> list[str | None]:
    """Run the probes; with several workers in processes, since compilers are not thread-safe.

    A compiler that crashes ends the other probes of its pool, too. These run again, each in a separate pool.
    """
    if workers == 1:
        return [_run_probe(probe) for probe in probes]
    results = _in_processes(probes, workers)
    repeated = (
        _in_processes([probe], 1)[0] if isinstance(result, BrokenProcessPool) else result
        for probe, result in zip(probes, results, strict=True)
    )
    return [f"the engine fails on it ({one})" if isinstance(one, BaseException) else one for one in repeated]


def _in_processes(probes: Sequence[_Probe], workers: int) -> list[str | BaseException | None]:
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(_run_probe, probe) for probe in probes]
        return [future.exception() or future.result() for future in futures]


def _run_probe(probe: _Probe) -> str | None:
    """Return why the engine does not compile one operator; None if it does."""
    compiled, files = probe.directory / "compiled", probe.directory / "workdir"
    for left in (compiled, files):  # by a compiler that was ended
        shutil.rmtree(left, ignore_errors=True)
    compiled.mkdir()
    settings = probe.settings
    if settings.workdir is not None:
        files.mkdir()
        settings = replace(settings, workdir=files)
    try:
        probe.engine.compile(torch.export.load(probe.program), probe.bucket, compiled, settings)
    except CompileError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - if the engine itself fails, it does not support this operator either
        return f"the engine fails on it ({type(error).__name__}: {error})"
    return None
