"""Analysis of the operators that an engine supports, and its JSON form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ...bucketing.shapes import Bucket
from ...config.partitioner import PartitionerConfig
from ..interface import Backend, CompileSettings
from .operator_names import torch_operator_name
from .operator_support import unsupported_operators

BY_LIST = "list of operators"
BY_COMPILER = "compiler"


@dataclass(frozen=True)
class UnsupportedOperator:
    """One call of an operator that an engine does not support."""

    kind: str
    """Name in torch, e.g. `aten::sort`."""
    failed_at: str
    """Origin of the result: the engine's list of operators, or its compiler on this operator alone."""
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
                {"kind": one.kind, "failureAt": one.failed_at, "call": one.call, "reason": one.reason}
                for one in self.unsupported
            ],
        }


def analyze_operators(
    engine: Backend,
    program: torch.export.ExportedProgram,
    bucket: Bucket,
    config: PartitionerConfig,
    settings: CompileSettings,
    source_line: Callable[[torch.fx.Node], str | None],
) -> Analysis:
    """Find the operators of a program of fixed sizes that an engine supports.

    `source_line` returns the line of the user's model that a node comes from.

    Raises `CompileError`: the engine cannot be queried.
    """
    reasons = unsupported_operators(engine, program, bucket, config, settings)
    failed_at = BY_LIST if engine.lists_operators() else BY_COMPILER
    return Analysis(
        backend=engine.name,
        not_installed=engine.unavailable(),
        unknown=None,
        supported=Counter(torch_operator_name(node) for node, reason in reasons.items() if reason is None),
        unsupported=tuple(
            UnsupportedOperator(torch_operator_name(node), failed_at, source_line(node), reason)
            for node, reason in reasons.items()
            if reason is not None
        ),
    )
