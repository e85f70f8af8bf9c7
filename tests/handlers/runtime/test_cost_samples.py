"""Properties of the judgement of timed calls."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.bucketing.cost_contradictions import NOISE, contradictions
from torchserve_neuron_lstm.bucketing.shapes import Bucket
from torchserve_neuron_lstm.handlers.runtime.cost_samples import (
    CostKey,
    Slice,
    contradiction_doubts,
    cost_ms,
    doubts,
    is_settled,
)

BUCKETS = st.builds(Bucket, st.integers(1, 64), st.integers(1, 300))
KEYS = st.builds(CostKey, st.sampled_from(("sequence", "chunk", "head")), BUCKETS, st.booleans())
JITTER = st.floats(1.0, 1.2)
SHARE = st.floats(0.0, 0.0999)
"""Shares below a tenth, the bound, by more than the rounding of a product and a quotient."""


def true_ms(key: CostKey, call_ms: float, cell_ms: float) -> float:
    """The cost of a program in which more rows and timesteps take longer."""
    return call_ms + cell_ms * key.bucket.batch * key.bucket.length


@st.composite
def quiet_slices(draw: st.DrawFn) -> dict[CostKey, list[Slice]]:
    """Slices of a machine without other work: some jitter, and little waiting."""
    call_ms, cell_ms = draw(st.floats(0.001, 10.0)), draw(st.floats(0.0, 0.01))
    found = {}
    for key in draw(st.sets(KEYS, min_size=1, max_size=12)):
        exact = true_ms(key, call_ms, cell_ms)
        shortest = [exact * draw(JITTER) for _ in range(draw(st.integers(2, 5)))]
        found[key] = [Slice(ms, 3 * ms, 3 * ms * draw(SHARE)) for ms in shortest]
    return found


@given(quiet_slices())
def test_quiet_slices_are_never_doubted(slices: dict[CostKey, list[Slice]]) -> None:
    """Their costs are the shortest calls."""
    assert doubts(slices) == ()
    assert all(cost_ms(own) == min(one.shortest_ms for one in own) for own in slices.values())


@given(quiet_slices(), st.data())
def test_a_cost_that_never_had_its_cores_is_always_doubted(
    slices: dict[CostKey, list[Slice]], data: st.DataObject
) -> None:
    """Whatever the others are, and even if all of its times agree."""
    key = data.draw(st.sampled_from(sorted(slices)))
    disturbed = [one._replace(waited_ms=one.wall_ms * data.draw(st.floats(0.11, 2.0))) for one in slices[key]]

    assert not is_settled(disturbed)
    assert doubts({**slices, key: disturbed})[0].startswith(f"1 of {len(slices)} costs were measured while threads")


@given(st.dictionaries(BUCKETS, st.floats(0.001, 100.0), max_size=8), BUCKETS, st.data())
def test_a_contradiction_beyond_noise_is_always_told(
    others: dict[Bucket, float], smaller: Bucket, data: st.DataObject
) -> None:
    """It is told beside any other costs of the program."""
    larger = Bucket(smaller.batch + data.draw(st.integers(0, 8)), smaller.length + data.draw(st.integers(1, 50)))
    larger_ms = data.draw(st.floats(0.001, 100.0))
    smaller_ms = NOISE * larger_ms + 0.011 + data.draw(st.floats(0.0, 10.0))
    costs = {**others, larger: larger_ms, smaller: smaller_ms}

    found = contradictions(costs)

    assert smaller in {one.smaller for one in found}
    assert contradiction_doubts({CostKey("sequence", bucket): ms for bucket, ms in costs.items()})


@given(st.dictionaries(KEYS, st.floats(0.001, 100.0), max_size=12))
def test_only_costs_of_one_program_contradict_each_other(costs: dict[CostKey, float]) -> None:
    """A contradiction is between two of its buckets, the larger of which is cheaper by more than noise."""
    for part, padded in {(key.part, key.padded) for key in costs}:
        own = {key.bucket: ms for key, ms in costs.items() if (key.part, key.padded) == (part, padded)}
        for one in contradictions(own):
            assert one.smaller.batch <= one.larger.batch
            assert one.smaller.length <= one.larger.length
            assert own[one.smaller] == one.smaller_ms > NOISE * one.larger_ms
            assert own[one.larger] == one.larger_ms


def test_undisturbed_slices_that_differ_are_told() -> None:
    """Time that a virtual machine does not get shows in no thread's waiting."""
    slices = {CostKey("chunk", Bucket(1, 4)): [Slice(ms, 2 * ms, 0.0) for ms in (1.0, 2.0, 4.0)]}

    assert doubts(slices) == (
        "1 of 1 costs took another time at each measurement (chunk 1 x 4 from 1.000 to 4.000 ms)",
    )


def test_many_contradictions_are_counted() -> None:
    """The worst two are told in full."""
    costs = {CostKey("head", Bucket(rows, 1)): 10.0 / rows for rows in (1, 2, 4, 8)}

    assert contradiction_doubts(costs) == (
        "head 1 x 1 took 10.000 ms, more than 8 x 1 with 1.250 ms",
        "head 2 x 1 took 5.000 ms, more than 8 x 1 with 1.250 ms",
        "1 more costs contradict others",
    )
