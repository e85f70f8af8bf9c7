"""Deadlines of requests: what a client may write, and who is left out of a batch."""

from __future__ import annotations

from typing import Any

import pytest
from fake_model import FakeModel, make_manifest
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.handlers.deadline import Turn, late, remaining_ms
from torchserve_neuron_lstm.handlers.formats import make_codec
from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest
from torchserve_neuron_lstm.handlers.formats.request import ModelIdentity
from torchserve_neuron_lstm.handlers.responses import RequestError
from torchserve_neuron_lstm.handlers.service import Service

NOW_MS = 1_700_000_000_000
turns = st.lists(st.builds(Turn, st.floats(-50, 200), st.lists(st.integers(1, 9), min_size=1, max_size=3)), max_size=12)


def work_ms(lengths: Any) -> float:
    """A call of 2 ms for each 4 sequences, and 1 ms for each timestep."""
    return 2.0 * -(-len(lengths) // 4) + float(sum(lengths))


@given(turns)
def test_whoever_is_computed_is_in_time_and_nobody_is_left_out_for_nothing(turns: list[Turn]) -> None:
    """By the estimate of what is computed together; the last one left out would have been too late."""
    dropped = late(turns, work_ms)
    kept = [turn for place, turn in enumerate(turns) if place not in dropped]

    total = work_ms([one for turn in kept for one in turn.lengths])
    assert all(0 < total <= turn.remaining_ms for turn in kept)
    if dropped:
        last = max((turns[place] for place in dropped), key=lambda turn: turn.remaining_ms)
        assert last.remaining_ms <= 0 or total + work_ms(last.lengths) > last.remaining_ms


@pytest.mark.parametrize(
    ("headers", "body_ms", "expected"),
    [
        ({}, None, 995.0),
        ({"accept": "*/*", "x-forwarded-for": "someone"}, None, 995.0),
        ({"X-Request-Timeout-Ms": "50"}, None, 45.0),
        ({"X-REQUEST-TIMEOUT-MS": "50"}, 20.0, 15.0),
        ({"x-request-deadline-ms": str(NOW_MS + 30)}, None, 30.0),
        ({"x-request-deadline-ms": str(NOW_MS - 30)}, None, -30.0),
        ({"x-request-deadline-ms": str(NOW_MS + 200_000)}, None, 995.0),
        ({"x-request-deadline-ms": str(NOW_MS + 30), "x-request-timeout-ms": "20"}, None, 15.0),
    ],
)
def test_the_nearest_deadline_counts_and_none_is_beyond_the_default(
    headers: dict[str, str], body_ms: float | None, expected: float
) -> None:
    """An absolute one is not moved by the time that the request has been here."""
    assert remaining_ms(headers, body_ms, 1000.0, elapsed_ms=5.0, unix_ms=float(NOW_MS)) == expected


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("x-request-timeout-ms", "soon", "expected whole milliseconds, got 'soon'"),
        ("x-request-timeout-ms", "-1", "expected whole milliseconds"),
        ("x-request-timeout-ms", "9" * 400, "expected whole milliseconds"),
        ("x-request-deadline-ms", "\u0663", "expected whole milliseconds"),
        ("x-request-deadline-ms", str(NOW_MS + 300_001), "the clocks differ"),
        ("x-request-deadline-ms", str(NOW_MS // 1000), "the clocks differ"),
    ],
)
def test_a_deadline_that_cannot_be_meant_is_refused(name: str, value: str, said: str) -> None:
    """Seconds instead of milliseconds, another clock, or no number."""
    with pytest.raises(RequestError, match=said) as refused:
        remaining_ms({name: value}, None, 1000.0, 0.0, float(NOW_MS))
    assert refused.value.status == 400
    assert len(refused.value.message) < 300


def test_a_late_request_is_refused_before_anything_is_computed_and_the_others_are_answered() -> None:
    """Its response says so with a 504, and when to try again."""
    model = FakeModel(make_manifest())
    service = Service(
        model, make_codec(model.manifest, ModelIdentity("m", "1")), unix_clock=lambda: NOW_MS / 1000, clock=lambda: 0.0
    )
    past = {"x-request-deadline-ms": str(NOW_MS - 1)}
    good, refused, bad = service.handle(
        [
            RawRequest({"body": [1, 2]}),
            RawRequest({"body": [3, 4, 5]}, past),
            RawRequest({"body": [6]}, {"x-request-timeout-ms": "x"}),
        ]
    )

    assert (good.status, refused.status, bad.status) == (200, 504, 400)
    assert refused.headers == {"Retry-After": "1"}
    assert b'"type":"DeadlineExceeded"' in refused.body
    assert service.handle([RawRequest({"body": [3, 4, 5]}, past)])[0].status == 504
