"""Trials of engines under `auto`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from torchserve_neuron_lstm.archiver_ext.evaluation import selection

Report = Mapping[str, Any]


GRID = {"batch": [1, 2, 3], "length": [2, 4]}


def auto_tries(monkeypatch: pytest.MonkeyPatch, *names: str, fallback: Sequence[str] = ()) -> None:
    monkeypatch.setattr(selection, "auto_engines", lambda purpose: fallback if purpose == "fallback" else names)


def names(report: Report, part: str = "engines") -> list[str]:
    return [engine["backend"] for engine in report[part]]
