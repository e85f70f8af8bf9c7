"""Which operators of a lowered model each engine takes, and where the user's model has the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...backends.interface import Backend, CompileError, CompileSettings, Selective, precision_of
from ...backends.partitioning.operator_support import RejectionReasons, unsupported_operators
from ...backends.partitioning.partition import at_sizes, torch_operator_name
from ...backends.registry import backend_names, get_backend
from ...bucketing.shapes import Bucket, role_buckets
from ...config.load import load_config
from ...config.partitioner import PartitionerConfig
from ...config.schema import ServingConfig
from ...lowering import lower
from ...lowering.errors import node_line
from ...lowering.program import LoweredModel
from ..build.partitioning import partitioner_config
from ..errors import PackagingError
from ..user_model import construct, importable, load_class, load_model

BY_LIST = "list of operators"
BY_COMPILER = "compiler"


@dataclass(frozen=True)
class Unsupported:
    """One operator of the model that an engine does not take."""

    kind: str
    """As in `aten::sort`."""
    failed_at: str
    """What said so: the engine's list of operators, or its compiler when it was tried alone."""
    call: str | None
    """The line of the user's model, as in `model.py:12: y, _ = torch.sort(x)`; None where none is known."""
    reason: str


@dataclass(frozen=True)
class Analysis:
    """What one engine takes of a model."""

    backend: str
    not_installed: str | None
    """Why it cannot compile here, with what to install; None where it can."""
    unknown: str | None
    """Why nothing could be found out; None where it could."""
    supported: Mapping[str, int] | None
    """How often the model has each operator that the engine takes; None where nothing could be found out."""
    unsupported: tuple[Unsupported, ...]

    @property
    def percentage(self) -> float | None:
        """Of the model's operators those that the engine takes, from 0 to 100."""
        if self.supported is None:
            return None
        taken = sum(self.supported.values())
        whole = taken + len(self.unsupported)
        return 100 * taken / whole if whole else 100.0


def lower_from_files(
    model_file: Path, config_file: Path, serialized_file: Path | None
) -> tuple[LoweredModel, ServingConfig]:
    """The user's model as it would be compiled; without a serialized file it has the weights it is made with.

    Raises:
        PackagingError, ConfigError, LoweringError: there is no such model; says what to do.
    """
    config = load_config(config_file)
    for file in filter(None, (model_file, serialized_file)):
        if not file.is_file():
            raise PackagingError(f"there is no file {file}")
    with importable(model_file.resolve().parent):
        if serialized_file is None:
            model = construct(load_class(model_file), config.model.args)
        else:
            model = load_model(model_file, serialized_file, config.model.args)
        return lower(model, config), config


def analyze(
    program: LoweredModel, config: ServingConfig, beside: Path, backends: Sequence[str] | None = None
) -> list[Analysis]:
    """What each engine takes of a program, in the smallest bucket; of all there are, unless some are named.

    Raises:
        CannotLoad: there is no backend of a name.
    """
    engines = [get_backend(name) for name in dict.fromkeys(backends or backend_names())]
    bucket = role_buckets("sequence", config.grid)[0]
    fixed = at_sizes(program.exported, bucket)
    options = partitioner_config(config, beside) or PartitionerConfig()
    return [_analysis(engine, fixed, bucket, options, config) for engine in engines]


def _analysis(
    engine: Backend,
    program: torch.export.ExportedProgram,
    bucket: Bucket,
    options: PartitionerConfig,
    config: ServingConfig,
) -> Analysis:
    missing = engine.unavailable()
    if missing is not None and not isinstance(engine, Selective):
        return Analysis(engine.name, missing, "only its compiler knows what it takes", None, ())
    settings = CompileSettings(precision=precision_of(engine, config.precision))
    try:
        found = unsupported_operators(engine, program, bucket, options, settings)
    except CompileError as error:
        return Analysis(engine.name, missing, str(error), None, ())
    return _counted(engine, missing, found)


def _counted(engine: Backend, missing: str | None, found: RejectionReasons) -> Analysis:
    place = BY_LIST if isinstance(engine, Selective) else BY_COMPILER
    return Analysis(
        backend=engine.name,
        not_installed=missing,
        unknown=None,
        supported=Counter(torch_operator_name(node) for node, reason in found.items() if reason is None),
        unsupported=tuple(
            Unsupported(torch_operator_name(node), place, node_line(node), reason)
            for node, reason in found.items()
            if reason is not None
        ),
    )


def to_json(analysis: Analysis) -> dict[str, Any]:
    """For machines: operators by their library, each with how often the model has it."""
    supported: dict[str, dict[str, int]] = {}
    for name, count in sorted((analysis.supported or {}).items()):
        supported.setdefault(name.partition("::")[0], {})[name] = count
    percentage = analysis.percentage
    return {
        "backend": analysis.backend,
        "not_installed": analysis.not_installed,
        "unknown": analysis.unknown,
        "support_percentage": None if percentage is None else f"{percentage:.2f}%",
        "supported_operators": supported,
        "unsupported_operators": [
            {"kind": one.kind, "failureAt": one.failed_at, "call": one.call, "reason": one.reason}
            for one in analysis.unsupported
        ],
    }
