"""Trials of engines under `auto` whose comparisons come to figures of the test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from torchserve_neuron_lstm.archiver_ext.evaluation import selection, trials
from torchserve_neuron_lstm.archiver_ext.evaluation.engine_times import EngineTimes
from torchserve_neuron_lstm.archiver_ext.evaluation.evaluate import EvaluatedEngine
from torchserve_neuron_lstm.bucketing.shapes import Bucket
from torchserve_neuron_lstm.handlers.runtime.measurement import Call

Report = Mapping[str, Any]


GRID = {"batch": [1, 2, 3], "length": [2, 4]}


def auto_tries(monkeypatch: pytest.MonkeyPatch, *names: str, fallback: Sequence[str] = ()) -> None:
    """Let `auto` try these engines."""
    monkeypatch.setattr(selection, "auto_engines", lambda purpose: fallback if purpose == "fallback" else names)


def measure(
    monkeypatch: pytest.MonkeyPatch, totals: Mapping[str, float], further_ms: float, *, calm: bool = True
) -> None:
    """Let each comparison come to these milliseconds, of the engines and of each call of a further engine."""

    def compared(engines: Sequence[EvaluatedEngine], further: Mapping[Bucket, Call] | None = None) -> EngineTimes:
        for call in (further or {}).values():
            call()
        found = {one.result.backend: totals[one.result.backend] for one in engines}
        return EngineTimes(found, dict.fromkeys(further or {}, further_ms), undisturbed=calm)

    monkeypatch.setattr(trials, "measure_together", compared)


def names(report: Report, part: str = "engines") -> list[str]:
    """The engines in a part of the report."""
    return [engine["backend"] for engine in report[part]]
