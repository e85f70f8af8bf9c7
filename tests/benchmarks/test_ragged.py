"""The engine's benchmark: counts, inputs, checks of answers, and reports."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import mean, median

import pytest
import torch
from benchmarks.ragged.cases import (
    BOTH_WAYS,
    CASES,
    LOG_NORMAL_32,
    LONE,
    LONGEST,
    MIDDLE,
    ONE_LONG,
    SMALL_32,
    TRIANGLE_8,
    TRIANGLE_32,
    Case,
    Size,
    log_normal,
    triangle,
)
from benchmarks.ragged.contestants import (
    Answer,
    alone,
    disagreement,
    eager_packed,
    eager_padded,
    onnx_padded,
)
from benchmarks.ragged.floors import SHARES, standings
from benchmarks.ragged.measured import ONNX, OURS, PACKED, PADDED, PLANNED, Measured, Rates, Run
from benchmarks.ragged.model import Ragged
from benchmarks.ragged.plans import beyond_optimum, wasted
from benchmarks.ragged.race import WrongAnswers, race, seconds_of
from benchmarks.ragged.report import draw, print_run, to_json
from rich.console import Console

from torchserve_neuron_lstm.archiver_ext.commands.timing import TimingConfig
from torchserve_neuron_lstm.bucketing.cost import CostModel
from torchserve_neuron_lstm.bucketing.shapes import Bucket

TINY = Size(features=3, hidden=4, layers=2)
TINY_BOTH_WAYS = Size(features=3, hidden=4, layers=2, bidirectional=True)


def make(size: Size) -> Ragged:
    """A seeded model."""
    torch.manual_seed(0)
    return Ragged(size.features, size.hidden, size.layers, size.bidirectional).eval()


def weights_of(size: Size) -> int:
    """The number of elements in the weight matrices of a model."""
    model = make(size)
    return sum(weight.numel() for name, weight in model.named_parameters() if "weight" in name)


@pytest.mark.parametrize("size", [TINY, TINY_BOTH_WAYS, MIDDLE, BOTH_WAYS, Size(5, 7, 1, bidirectional=True)])
def test_useful_operations_are_two_for_each_weight_and_real_timestep(size: Size) -> None:
    """The reference is the shapes of torch's layers."""
    assert size.flop(1) == 2 * weights_of(size)
    assert size.flop(10) == 10 * size.flop(1)


def test_a_triangle_is_equally_spaced_from_13_to_128() -> None:
    """The order is not the sorted one, and is always the same."""
    for count in (8, 32):
        lengths = triangle(count)
        ascending = sorted(lengths)
        steps = {b - a for a, b in pairwise(ascending)}
        assert (len(lengths), ascending[0], ascending[-1]) == (count, 13, 128)
        assert max(steps) - min(steps) <= 1
        assert lengths == triangle(count)
        assert list(lengths) not in (ascending, ascending[::-1])


def test_log_normal_lengths_are_26_on_average_and_never_above_the_limit() -> None:
    """Half of the lengths are below 20."""
    many = log_normal(20_000, random.Random(1), longest=330)
    assert 25 < mean(many) < 26.5
    assert 19 <= median(many) <= 21
    assert min(many) >= 1
    assert max(log_normal(20_000, random.Random(1), longest=50)) == 50


def test_the_batches_that_are_measured_are_like_their_distribution() -> None:
    """Eight batches of 32 have the distribution's mean and spread; one more has the longest length."""
    batches = LOG_NORMAL_32.batches
    assert {len(batch) for batch in batches} == {32}
    assert 24 < mean(length for batch in batches for length in batch) < 28
    assert 100 < max(map(max, batches)) <= LONGEST
    assert sorted(ONE_LONG.batches[0])[:-1] == sorted(batches[0])[:-1]
    assert max(ONE_LONG.batches[0]) == LONGEST


@pytest.mark.parametrize("size", [TINY, TINY_BOTH_WAYS])
def test_every_rival_answers_as_the_model_does_alone(size: Size) -> None:
    """Answers are in the order of the requests, unpadded."""
    model = make(size)
    requests = [torch.randn(length, size.features) for length in (2, 7, 1, 7, 4)]
    right = alone(model)(requests)
    assert [tuple(states.shape) for states, _ in right] == [(len(r), 4 * model.directions) for r in requests]
    rivals = [eager_packed(model), onnx_padded(model, threads=1)]
    for rival in rivals if size.bidirectional else [*rivals, eager_padded(model)]:
        assert disagreement(rival(requests), right) <= 1


def test_a_wrong_answer_is_seen() -> None:
    """Wrong values, a wrong shape and not-a-number are found."""
    model = make(TINY)
    requests = [torch.randn(length, 3) for length in (2, 5)]
    right = alone(model)(requests)
    assert disagreement(right, right) == 0
    assert disagreement(_changed(right, 1e-3), right) > 1
    assert disagreement(_changed(right, float("nan")), right) == float("inf")
    assert disagreement([(states[:-1], last) for states, last in right], right) == float("inf")
    assert disagreement(alone(make(TINY))(requests[::-1]), right) == float("inf")


def _changed(answers: Sequence[Answer], by: float) -> list[Answer]:
    return [(states, last + by) for states, last in answers]


def test_timing_starts_after_all_answers_are_right() -> None:
    """A contestant with a wrong answer ends the benchmark, and is named."""
    model = make(TINY)

    def lying(requests: Sequence[torch.Tensor]) -> list[Answer]:
        return _changed(alone(model)(requests), 1e-3)

    with pytest.raises(WrongAnswers, match=f"{ONNX} on 3->4 x2, tiny: an answer differs"):
        seconds_of(
            Case("tiny", TINY, ((3, 1),)), model, {PACKED: eager_packed(model), ONNX: lying}, {}, TimingConfig(1)
        )


@pytest.mark.long
@pytest.mark.timeout(300)  # it packages two archives, on a machine that may have others to do
def test_a_race_measures_everyone_on_every_case(tmp_path: Path) -> None:
    """The real command and the loader of serving are used; cases keep their order."""
    cases = [Case(f"{count} rows", TINY, (tuple(range(1, count + 1)),) * 2) for count in (3, 1)]
    told: list[str] = []
    run = race(cases, tmp_path, "eager", 1, TimingConfig(rounds=2, slice_s=0.001, pause_s=0), told.append)

    assert [found.case for found in run.measured] == cases
    assert run.rates.fma >= run.rates.usual_fma > 0
    assert run.rates.gemm > 0
    assert run.cores_obtained > 0
    assert set(run.chunk_costs) == {TINY}
    for found in run.measured:
        assert set(found.seconds) == {OURS, PLANNED, ONNX, PACKED, PADDED}
        assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in found.seconds.values())
    assert told == ["packaging 3->4 x2", "measuring 3->4 x2, 3 rows", "measuring 3->4 x2, 1 rows"]


def took(case: Case, **milliseconds: float) -> Measured:
    """A case with these times: ours, packed, padded, onnx, planned."""
    names = {"ours": OURS, "packed": PACKED, "padded": PADDED, "onnx": ONNX, "planned": PLANNED}
    return Measured(case, {names[name]: (value / 1000,) for name, value in milliseconds.items()}, (100.0,))


def at_share(case: Case, share: float, fma_gflops: float, **times: float) -> Measured:
    """A case with our share of the cores' rate, and rivals that take a multiple of our time."""
    ours = case.flop / (share * fma_gflops * 1e9) * 1000
    return took(case, ours=ours, **{name: ours * factor for name, factor in times.items()})


def run_of(shares: Sequence[float], packed: Sequence[float], onnx: Sequence[float], lone: tuple[float, float]) -> Run:
    """A whole run; one value for each case with a floor."""
    fma = 200.0
    cases = [case for case, *_ in SHARES]
    measured = [
        at_share(case, share, fma, packed=p, onnx=o, planned=1.25)
        for case, share, p, o in zip(cases, shares, packed, onnx, strict=True)
    ]
    measured.append(at_share(LONE, 0.3, fma, packed=lone[0], padded=lone[1], onnx=1.0))
    measured.append(at_share(ONE_LONG, 0.01, fma, packed=0.1, onnx=0.1))
    return Run(Rates(fma, 0.9 * fma, 0.5 * fma), 0.99, tuple(measured), {MIDDLE: chunk_cost(call_ms=0.05)})


def chunk_cost(call_ms: float) -> CostModel:
    """Costs: per call, per timestep for all rows together, and per timestep of each row."""
    return CostModel(
        {Bucket(rows, steps): call_ms + steps * (0.02 + 0.009 * rows) for rows in (1, 8, 32) for steps in (4, 32)}
    )


def test_floors_are_those_of_the_measured_ratios() -> None:
    """Floors use the share of each case, the worst ratio to each rival, and the faster eager mode alone."""
    run = run_of(
        shares=(0.85, 0.6, 0.86, 0.75, 0.77),
        packed=(3, 2.5, 1.9, 4, 5),
        onnx=(2, 1.39, 2, 2, 2),
        lone=(3, 1.5),
    )
    found = standings(run)

    assert [round(standing.value, 6) for standing in found[:8]] == [0.85, 0.6, 0.86, 0.75, 0.77, 1.9, 1.39, 1.5]
    assert [standing.reached for standing in found[:8]] == [
        *("floor", "missed", "aim", "floor", "floor"),
        *("floor", "missed", "floor"),
    ]
    assert str(TRIANGLE_8) in found[5].what
    assert str(LOG_NORMAL_32) in found[6].what


def test_plans_have_floors_of_their_own() -> None:
    """Tuned lengths are optimal; on a fixed grid, cheaper calls mean more calls and less padding."""
    assert [beyond_optimum(count) for count in (8, 16)] == [0, 0]
    few, many = (wasted(chunk_cost(call_ms), batches=8) for call_ms in (2.0, 0.01))
    assert 0 < many < few < 1


def test_the_ratio_is_that_of_the_medians() -> None:
    """One bad round of one contestant has little effect."""
    measured = Measured(TRIANGLE_32, {OURS: (1.0, 90.0, 2.0), PACKED: (5.0, 6.0, 0.1)}, (100.0,) * 3)
    assert measured.times_faster(PACKED) == 2.5


def test_a_machine_that_is_slow_in_some_rounds_does_not_change_the_share_within_a_round() -> None:
    """A shared machine may give the cores half of their rate, to everybody who runs then."""
    full = TRIANGLE_32.flop / 1e9  # GFLOP/s of a batch in a second
    measured = Measured(TRIANGLE_32, {OURS: (1.0, 2.0, 2.0)}, (1.25 * full, 0.625 * full, 0.625 * full))

    assert measured.share_in_round(OURS) == pytest.approx(0.8)
    assert measured.gflops(OURS) / max(measured.fma_gflops) == pytest.approx(0.4)


def test_a_run_is_told_as_a_table_as_json_and_as_a_picture(tmp_path: Path) -> None:
    """All outputs have the same figures; a case without a rival has no row for it."""
    run = run_of((0.9,) * 5, (3,) * 5, (2,) * 5, (3, 3))
    found = standings(run)
    told = printed(run, 80)
    written = json.loads(json.dumps(to_json(run, found, {"threads": 2})))
    draw(run, tmp_path / "rates.png")

    assert all(told.count(contestant) >= len(SHARES) for contestant in (OURS, PLANNED, ONNX, PACKED))
    assert written["cases"][0]["contestants"][PLANNED]["we_are_times_faster"] == pytest.approx(1.25)
    assert "cores' fused multiply-adds: 200 GFLOP/s" in " ".join(told.split())
    assert "torch's matrix product at best 0.50" in " ".join(told.split())
    assert max(map(len, told.splitlines())) <= 80
    assert written["cases"][0]["contestants"][OURS]["of_fma"] == pytest.approx(0.9)
    assert len(written["floors"]) == len(found)
    assert (tmp_path / "rates.png").read_bytes().startswith(b"\x89PNG")


def printed(run: Run, width: int) -> str:
    """The printed report of a run."""
    console = Console(width=width)
    with console.capture() as capture:
        print_run(run, standings(run), console)
    return capture.get()


def test_a_busy_machine_is_told() -> None:
    """Figures with little of the cores' time are marked as doubtful."""
    calm = run_of((0.9,) * 5, (3,) * 5, (2,) * 5, (3, 3))
    busy = replace(calm, cores_obtained=0.6)

    assert "busy" not in printed(calm, 200)
    assert "The machine was busy: only 60% of its cores' time was to be had" in printed(busy, 200)


def test_every_case_with_a_floor_is_measured() -> None:
    """All cases with a floor are measured.

    The bidirectional case has no padded eager rival: its backward direction would begin in the padding.
    """
    assert {case for case, *_ in SHARES} | {LONE} <= set(CASES)
    assert SMALL_32.size.hidden == 128
