"""Analysis of the operators that an engine supports, and its JSON form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ...config.partitioner import PartitionerBlock
from ..interface import Backend
from .operator_names import operators_of, queried_operators, torch_operator_name


@dataclass(frozen=True)
class UnsupportedOperator:
    """One call of an operator that an engine does not support."""

    kind: str
    """Name in torch, e.g. `aten::sort`."""
    call: str | None
    """Line of the user's model, e.g. `model.py:12: y, _ = torch.sort(x)`; None if unknown."""
    reason: str


@dataclass(frozen=True)
class Analysis:
    """Operators of a model that one engine supports, and those that it does not."""

    backend: str
    not_installed: str | None
    """Reason that the engine cannot compile here, with what to install; None if it can."""
    unknown: str | None
    """Reason that there is no result; None if there is one."""
    supported: Mapping[str, int] | None
    """Number of calls of each supported operator; None if there is no result."""
    unsupported: tuple[UnsupportedOperator, ...]

    @property
    def percentage(self) -> float | None:
        """Supported share of the model's operators, from 0 to 100; None if there is no result."""
        if self.supported is None:
            return None
        supported = sum(self.supported.values())
        total = supported + len(self.unsupported)
        return 100 * supported / total if total else 100.0

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, with the supported operators grouped by library."""
        libraries: dict[str, dict[str, int]] = {}
        for name, count in sorted((self.supported or {}).items()):
            libraries.setdefault(name.partition("::")[0], {})[name] = count
        return {
            "backend": self.backend,
            "not_installed": self.not_installed,
            "unknown": self.unknown,
            "support_percentage": None if self.percentage is None else f"{self.percentage:.2f}%",
            "supported_operators": libraries,
            "unsupported_operators": [
                {**asdict(operator), "failureAt": "list of operators"} for operator in self.unsupported
            ],
        }


def analyze_operators(
    engine: Backend,
    program: torch.export.ExportedProgram,
    config: PartitionerBlock,
    source_line: Callable[[torch.fx.Node], str | None],
) -> Analysis:
    """Find the operators of a program of fixed sizes that an engine supports.

    `source_line` returns the line of the user's model that a node comes from.

    Raises `CompileError`: the engine cannot be queried.
    """
    reasons = {node: engine.refusal(node) for node in queried_operators(operators_of(program.graph), config)}
    return Analysis(
        backend=engine.name,
        not_installed=engine.unavailable(),
        unknown=None,
        supported=Counter(torch_operator_name(node) for node, reason in reasons.items() if reason is None),
        unsupported=tuple(
            UnsupportedOperator(torch_operator_name(node), source_line(node), reason)
            for node, reason in reasons.items()
            if reason is not None
        ),
    )
