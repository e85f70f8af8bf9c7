import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
import torch
from fake_model import FakeModel, make_manifest
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.bucketing.cost import CostModel
from torchserve_neuron_lstm.bucketing.execute import Pad, Tensors
from torchserve_neuron_lstm.bucketing.execute_chunks import ResumedState
from torchserve_neuron_lstm.bucketing.padding import pad
from torchserve_neuron_lstm.bucketing.plan import Plan
from torchserve_neuron_lstm.bucketing.planner import make_planner
from torchserve_neuron_lstm.bucketing.shapes import DynamicShape
from torchserve_neuron_lstm.config.manifest import Manifest
from torchserve_neuron_lstm.handlers.batch import BatchStats, run_sequences
from torchserve_neuron_lstm.handlers.formats.request import SequenceInput
from torchserve_neuron_lstm.handlers.responses import RequestError
from torchserve_neuron_lstm.handlers.runtime.loader import ServedModel

POISON = 66
SHAPE = DynamicShape(batch=4, length=8)
STAIRS = make_planner("chunk", SHAPE, CostModel.proportional(SHAPE))


@dataclass
class Stairs:
    """The sum of each row's ids, carried from chunk to chunk; a chunk with the poison fails all its rows."""

    manifest: Manifest = field(default_factory=make_manifest)
    plans: list[Plan] = field(default_factory=list)

    def plan(self, lengths: Sequence[int]) -> Plan:
        return STAIRS.plan(lengths)

    def run_plan(
        self, plan: Plan, sequences: Any, lengths: Sequence[int], pad: Pad = pad, resumed: ResumedState | None = None
    ) -> tuple[list[Tensors], Tensors]:
        self.plans.append(plan)
        sums = [torch.tensor(0.0) for _ in sequences]
        for call in plan.calls:
            for row in call.rows:
                chunk = sequences[row][0][call.start : call.start + call.bucket.length]
                if bool((chunk == POISON).any()):
                    raise RuntimeError("a kernel failed")
                sums[row] = sums[row] + chunk.sum()
        assert sorted(row for head in plan.heads for row in head.rows) == list(range(len(sequences)))
        return [(total,) for total in sums], ()


MODELS = pytest.mark.parametrize("make", [FakeModel, Stairs])


def item(*ids: int) -> SequenceInput:
    return SequenceInput((torch.tensor(ids),), len(ids))


def answered(model: ServedModel, items: Sequence[SequenceInput]) -> tuple[list[float | str], BatchStats]:
    answers, work = run_sequences(model, items, map(float, count()).__next__)
    return [one.kind if isinstance(one, RequestError) else float(one[0].flatten()[-1]) for one in answers], work


@MODELS
def test_all_sequences_are_answered_by_one_plan(make: type[ServedModel]) -> None:
    told, work = answered(make(), [item(1, 2), item(3), item(1, 1, 1, 1, 1)])

    assert told == [3.0, 3.0, 5.0]
    assert (work.lengths, work.real_timesteps, len(work.plans)) == ((2, 1, 5), 8, 1)
    assert (work.plan_seconds, work.engine_seconds) == (1.0, 1.0)
    assert answered(make(), []) == ([], BatchStats())


@MODELS
@given(bad=st.sets(st.integers(0, 8)), lengths=st.lists(st.integers(1, 8), min_size=9, max_size=9))
def test_only_the_poisoned_sequences_have_no_answer(make: type[ServedModel], bad: set[int], lengths: list[int]) -> None:
    items = [
        item(*[1] * (length - 1), POISON) if index in bad else item(*[1] * length)
        for index, length in enumerate(lengths)
    ]
    told, work = answered(make(), items)

    assert told == ["InternalError" if index in bad else length for index, length in enumerate(lengths)]
    assert work.lengths == tuple(lengths)
    assert work.real_timesteps == sum(length for index, length in enumerate(lengths) if index not in bad)


@MODELS
def test_a_failure_is_logged_once(make: type[ServedModel], caplog: pytest.LogCaptureFixture) -> None:
    answered(make(), [item(1), item(POISON), item(2), item(POISON)])

    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "4 sequences planned together failed" in caplog.text
    assert "a kernel failed" in caplog.text


@MODELS
def test_sequences_that_fail_only_together_are_answered_and_a_cause_that_one_has_alone_is_logged(
    make: type[ServedModel], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plan = make.plan

    def alone_only(self: ServedModel, lengths: Sequence[int]) -> Plan:
        if len(lengths) > 1:
            raise RuntimeError("out of memory")
        return plan(self, lengths)

    monkeypatch.setattr(make, "plan", alone_only)
    told, work = answered(make(), [item(1, 2), item(3)])
    assert told == [3.0, 3.0]
    assert (len(work.plans), work.engine_seconds) == (2, 2.0)

    caplog.clear()
    told, _ = answered(make(), [item(POISON), item(3), item(1, POISON)])

    assert told == ["InternalError", 3.0, "InternalError"]
    first, second = caplog.records
    assert "3 sequences planned together failed" in first.message
    assert "a sequence of 1 timesteps failed alone" in second.message
    assert "out of memory" in caplog.text
    assert "a kernel failed" in caplog.text


class Unprintable(ValueError):
    def __str__(self) -> str:
        raise self


@dataclass
class Quoting(Stairs):
    """A model whose errors hold values of the request, and are each other's cause."""

    kind: type[Exception] = ValueError

    def run_plan(self, plan: Plan, sequences: Any, *others: Any, **named: Any) -> tuple[list[Tensors], Tensors]:
        first, second = KeyError(sequences[0][0].tolist()), self.kind(f"the request holds {sequences}")
        first.__cause__ = second
        raise second from first


@pytest.mark.parametrize("kind", [ValueError, Unprintable])
def test_the_log_has_the_kinds_and_the_lines_of_errors_and_not_their_texts(
    kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    told, _ = answered(Quoting(kind=kind), [item(98765), item(98765, 1)])

    assert told == ["InternalError", "InternalError"]
    assert "98765" not in caplog.text
    assert "KeyError\n\nled to\n" in caplog.text
    assert f"raise second from first\n{kind.__name__}" in "\n".join(
        line.strip() for line in caplog.text.splitlines() if "^^" not in line
    )
    assert len(caplog.records) == 1


@MODELS
def test_a_sequence_that_is_alone_is_tried_once(make: type[ServedModel], caplog: pytest.LogCaptureFixture) -> None:
    model = make()
    told, work = answered(model, [item(1, POISON)])

    assert told == ["InternalError"]
    assert work == BatchStats(lengths=(2,))
    assert len(model.plans if isinstance(model, Stairs) else model.runs) == 1  # type: ignore[attr-defined]  # each keeps its calls
    assert len(caplog.records) == 1
