"""PartitionerConfig and analyze."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from . import _trace
from ._script import Function


class PartitionerConfig:
    """The operators for the CPU, and the limits of partitioning."""

    def __init__(
        self,
        *,
        trace_kwargs: dict[str, Any] | None = None,
        model_support_percentage_threshold: float = 0.5,
        min_subgraph_size: int = -1,
        max_subgraph_count: int = -1,
        ops_to_partition: set[str] | None = None,
        analyze_parameters: dict[str, Any] | None = None,
    ) -> None:
        if not 0 <= model_support_percentage_threshold <= 1:
            raise ValueError("model_support_percentage_threshold must be between 0 and 1")
        for name, value in (("min_subgraph_size", min_subgraph_size), ("max_subgraph_count", max_subgraph_count)):
            if value != -1 and value < 1:
                raise ValueError(f"{name} must be at least 1, or -1")
        if set(analyze_parameters or {}) - {"compiler_workdir", "additional_ignored_ops", "max_workers"}:
            raise ValueError("analyze_parameters: compiler_workdir, additional_ignored_ops and max_workers are known")
        self.trace_kwargs = trace_kwargs
        self.model_support_percentage_threshold = model_support_percentage_threshold
        self.min_subgraph_size = min_subgraph_size
        self.max_subgraph_count = max_subgraph_count
        self.ops_to_partition = ops_to_partition
        self.analyze_parameters = analyze_parameters


def check(config: PartitionerConfig, kinds: Counter[str]) -> None:
    """Refuse a model by the configured limits, as if each unsupported operator cut the graph once.

    Raises:
        ValueError: a limit does not hold.
    """
    forced = config.ops_to_partition or set()
    out = {kind: number for kind, number in kinds.items() if kind in forced or not _trace.is_supported(kind)}
    total, taken = sum(kinds.values()), sum(kinds.values()) - sum(out.values())
    if taken < config.model_support_percentage_threshold * total:
        raise ValueError(f"{taken} of {total} operators are supported, fewer than the threshold")
    subgraphs = min(taken, sum(out.values()) + 1)
    if config.max_subgraph_count != -1 and subgraphs > config.max_subgraph_count:
        raise ValueError(f"{subgraphs} subgraphs are more than max_subgraph_count ({config.max_subgraph_count})")
    if config.min_subgraph_size != -1 and (not subgraphs or taken // subgraphs < config.min_subgraph_size):
        raise ValueError(f"a subgraph is smaller than min_subgraph_size ({config.min_subgraph_size})")


def analyze(
    func: Callable[..., Any],
    example_inputs: Any,
    compiler_workdir: str | None = None,
    *,
    additional_ignored_ops: set[str] | None = None,
    max_workers: int = 4,
    is_hf_transformers: bool = False,
    cleanup: bool = False,
) -> dict[str, Any]:
    """Report the operators of a function that the compiler supports."""
    examples = _trace.example_tensors(example_inputs)
    model = func if isinstance(func, torch.nn.Module) else Function(func)
    graph = _trace.jit_trace(model, examples).inlined_graph
    ignored = additional_ignored_ops or set()
    kinds = Counter({kind: n for kind, n in _trace.operators(graph).items() if kind not in ignored})
    supported = {kind: n for kind, n in kinds.items() if _trace.is_supported(kind)}
    share = 100 * sum(supported.values()) / max(1, sum(kinds.values()))
    return {
        "torch_neuronx_version": "double",
        "neuronx_cc_version": "double",
        "support_percentage": f"{share:.2f}%",
        "supported_operators": supported,
        "unsupported_operators": [
            {"kind": node.kind(), "failureAt": "neuronx-cc", "call": node.sourceRange(), "opGraph": str(node)}
            for node in graph.nodes()
            if node.kind() in kinds and node.kind() not in supported
        ],
    }
