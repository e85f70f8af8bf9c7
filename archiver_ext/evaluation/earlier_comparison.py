"""Earlier comparison of engines for the same programs, in the cache of compiled programs.

Weights do not change how fast an engine is. So after a change of the weights or of the YAML, engines that clearly lost
the earlier comparison are not tried again. Where other work disturbed it, they must have lost by more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...backends.compile_cache import entries
from ...backends.compile_cache.key import digest, toolchain_versions
from ...backends.compile_cache.program_digest import program_digest
from ...backends.interface import Backend
from ...config.engine_choice import AUTO
from ...lowering.program import LoweredModel
from .manifest_builder import BuildInput
from .omitted_engine import OmittedEngine, lost_before

CLEARLY = 1.2
"""Ratio of an engine's time to the fastest one's from which it is not tried again."""
CLEARLY_THOUGH_DISTURBED = 1.5
"""The same where other work disturbed it, which seldom makes the shortest times wrong by half."""

_FILE = "measured.json"


@dataclass(frozen=True)
class EarlierComparison:
    """Engines that were measured in alternating rounds."""

    milliseconds: Mapping[str, float]
    """Time for one batch of each size, by engine."""
    undisturbed: bool


@dataclass(frozen=True)
class ComparisonCache:
    """The place of the comparison of some engines for some programs."""

    folder: Path
    """The folder of the cache of compiled programs."""
    key: str
    work: Path
    """A directory of this packaging for the files of entries."""

    def read(self) -> EarlierComparison | None:
        """Return the comparison; None if there is none."""
        target = self.work / "compared"
        target.mkdir(parents=True)
        if not entries.fetch(self.folder, self.key, target):
            return None
        return EarlierComparison(**json.loads((target / _FILE).read_text(encoding="utf-8")))

    def write(self, comparison: EarlierComparison) -> None:
        """Keep a comparison."""
        source = self.work / "comparison"
        source.mkdir(parents=True)
        facts = {"milliseconds": dict(comparison.milliseconds), "undisturbed": comparison.undisturbed}
        (source / _FILE).write_text(json.dumps(facts), encoding="utf-8")
        entries.keep(self.folder, self.key, source)


def comparison_key(build: BuildInput, program: LoweredModel, engines: Sequence[Backend]) -> str | None:
    """Return the key of the comparison of all `engines`; None if it is not kept.

    It is kept for `auto` without the names of engines, where the content of the programs and what compiles them is
    known. Of the grid, the batch sizes and the longest length count: the lengths between change each engine's time by
    less than `CLEARLY`.
    """
    config = build.config
    contents = {role: program_digest(part) for role, part in program.parts.items()}
    versions = {engine.name: toolchain_versions(engine.name) for engine in engines}
    if config.engine != AUTO or config.auto.engines is not None:
        return None
    if None in contents.values() or None in versions.values():
        return None
    facts: dict[str, Any] = {
        "programs": contents,
        "engines": versions,
        "batches": config.grid.batches,
        "longest": [config.grid.lengths[-1], config.longest],
        "precision": config.precision,
        "arguments": config.compiler_args,
        "threads": build.threads,
        "streams": config.streaming is not None,
        "file": _FILE,
    }
    return digest(facts)


def clearly_slower(comparison: EarlierComparison, names: Sequence[str]) -> tuple[OmittedEngine, ...]:
    """Return those of the engines `names` that clearly lost; none if the fastest is not among them.

    >>> times = {"a": 40.0, "b": 44.0, "c": 50.0, "d": 90.0}
    >>> [one.backend for one in clearly_slower(EarlierComparison(times, undisturbed=True), ["a", "b", "c", "d"])]
    ['c', 'd']
    >>> [one.backend for one in clearly_slower(EarlierComparison(times, undisturbed=False), ["a", "b", "c", "d"])]
    ['d']
    >>> clearly_slower(EarlierComparison(times, undisturbed=True), ["d"])
    ()
    """
    milliseconds = comparison.milliseconds
    ratio = CLEARLY if comparison.undisturbed else CLEARLY_THOUGH_DISTURBED
    fastest = min(milliseconds, key=milliseconds.__getitem__, default=None)
    if fastest is None or fastest not in names:
        return ()
    best = milliseconds[fastest]
    return tuple(
        lost_before(name, milliseconds[name], fastest, best)
        for name in names
        if milliseconds.get(name, 0.0) > ratio * best
    )
