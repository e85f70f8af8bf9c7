"""Lengths chosen by measured cost, with an engine for every shape in the place of the packaged one."""

from __future__ import annotations

import io
from pathlib import Path

import odd_engines
import pytest
import torch
from model_cases import CASES, Case
from rich.console import Console

from torchserve_neuron_lstm.archiver_ext.errors import PackagingError
from torchserve_neuron_lstm.archiver_ext.evaluation import length_choice
from torchserve_neuron_lstm.archiver_ext.evaluation.length_choice import _engines, buckets_to_time, choose_lengths
from torchserve_neuron_lstm.bucketing.shapes import BucketGrid
from torchserve_neuron_lstm.config.load import parse_config
from torchserve_neuron_lstm.config.manifest import read_manifest
from torchserve_neuron_lstm.config.schema import ServingConfig
from torchserve_neuron_lstm.lowering import lower
from torchserve_neuron_lstm.lowering.program import LoweredModel

from ..conftest import Project

QUIET = Console(file=io.StringIO())
SEEN = dict.fromkeys(range(3, 41), 5) | {64: 1}


def case(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def configured(tmp_path: Path, name: str, length: str, backend: str = "auto") -> tuple[ServingConfig, LoweredModel]:
    (tmp_path / "lengths.txt").write_text(" ".join(f"{length}:{number}" for length, number in SEEN.items()))
    written = case(name).yaml.split("  buckets:")[0]
    text = f"{written}  buckets: {{batch: [1, 4], length: {length}}}\n  backend: {backend}\n"
    config = parse_config(text, "model-config.yaml", tmp_path)
    torch.manual_seed(0)
    return config, lower(case(name).make().eval(), config)


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.long)])
def test_lengths_are_chosen_for_every_engine(tmp_path: Path, backend: str) -> None:
    config, program = configured(tmp_path, "Tagger", "{auto: 3, histogram: lengths.txt}", backend)

    settled = choose_lengths(program, config, 1, tmp_path / "scratch", QUIET)

    assert len(settled.grid.lengths) <= 3
    assert set(settled.grid.lengths) <= set(SEEN)
    assert settled.grid.lengths[-1] == 64
    assert settled == config.with_lengths(settled.grid.lengths)


def test_the_largest_batch_is_measured_from_the_shortest_to_the_longest(tmp_path: Path) -> None:
    config, program = configured(tmp_path, "MaskedMeanPooling", "{auto: 3, histogram: lengths.txt}", "eager")
    told: list[tuple[int, int, str]] = []

    cost = length_choice.measured_costs(program, config, 1, tmp_path / "scratch", lambda *step: told.append(step))

    assert set(cost.milliseconds) == set(buckets_to_time(config.grid))
    assert {bucket.batch for bucket in cost.milliseconds} == {4}
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)
    assert told[-1][0] == told[-1][1]
    assert told[0][2].startswith("eager 4 x ")


@pytest.mark.parametrize(
    "grid", [BucketGrid((1,), (1,)), BucketGrid((3,), (330,)), BucketGrid((1, 8), (100, 101)), BucketGrid((2,), (1, 2))]
)
def test_what_is_measured_lies_within_the_grid(grid: BucketGrid) -> None:
    """A program made for the grid's range can run it."""
    measured = buckets_to_time(grid)

    assert [bucket.batch for bucket in measured] == [grid.batches[-1]] * len(measured)
    assert measured[0].length == grid.lengths[0]
    assert measured[-1].length == grid.lengths[-1]
    assert len(measured) <= 9


@pytest.mark.parametrize(
    "length", ["[4, 16, 64]", "{auto: 3, longest: 64}", "{auto: 3, histogram: lengths.txt, objective: timesteps}"]
)
def test_lengths_that_are_settled_stay(tmp_path: Path, length: str) -> None:
    config, program = configured(tmp_path, "Tagger", length)

    assert choose_lengths(program, config, 1, tmp_path / "scratch", QUIET) is config
    assert not (tmp_path / "scratch").exists()


@pytest.mark.few(1)
@pytest.mark.parametrize(("backend", "reason"), [("choosy", "not this program"), ("stuck", "not on this host")])
def test_without_an_engine_that_runs_the_model_the_way_out_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, reason: str
) -> None:
    odd_engines.use(monkeypatch, tmp_path / "site")
    config, program = configured(tmp_path, "Tagger", "{auto: 3, histogram: lengths.txt}", backend)

    with pytest.raises(PackagingError, match="write objective: timesteps") as refused:
        choose_lengths(program, config, 1, tmp_path / "scratch", QUIET)
    assert reason in str(refused.value)


def test_an_archive_is_packaged_with_lengths_chosen_for_its_traffic(project: Project) -> None:
    file = project.folder / "model-config.yaml"
    file.write_text(file.read_text().replace("[2, 4]", "{auto: 2, histogram: lengths.txt}"))
    (project.folder / "lengths.txt").write_text("2:9 3:5 6:1")

    done = project.archive("--archive-format", "no-archive", "--export-path", ".")

    assert done.returncode == 0, done.stderr
    grid = read_manifest(project.folder / "tiny").grid
    assert grid.batches == (1, 2)
    assert grid.lengths[-1] == 6
    assert set(grid.lengths) <= {2, 3, 6}
    assert len(grid.lengths) <= 2  # a single one, if that was measured no slower


def test_a_histogram_that_cannot_be_read_leaves_no_archive(project: Project) -> None:
    file = project.folder / "model-config.yaml"
    file.write_text(file.read_text().replace("[2, 4]", "{auto: 2, histogram: lengths.txt}"))
    before = project.listing()

    done = project.archive()

    assert done.returncode == 1
    assert "neuron_lstm.buckets.length.histogram: lengths.txt: cannot be read: No such file or directory" in done.stderr
    assert project.listing() == before


@pytest.mark.parametrize(("partitioner", "engines"), [("", ["onnxruntime"]), ("{}", ["onnxruntime", "eager"])])
def test_another_engine_stands_in_for_one_that_may_leave_operators_to_the_cpu(
    tmp_path: Path, partitioner: str, engines: list[str]
) -> None:
    """The engine may be unable to run the whole program alone; each engine is tried once."""
    backend = f"onnxruntime\n  partitioner_config: {partitioner}" if partitioner else "onnxruntime"
    config, _ = configured(tmp_path, CASES[0].name, "{auto: 2, histogram: lengths.txt}", backend)
    assert [engine.name for engine in _engines(config)] == engines
