import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from model_cases import CASES

from torchserve_neuron_lstm.archiver_ext.archive import layout
from torchserve_neuron_lstm.archiver_ext.evaluation import evaluate, trials
from torchserve_neuron_lstm.archiver_ext.evaluation.candidate import make_candidate
from torchserve_neuron_lstm.archiver_ext.evaluation.candidate_compiler import compile_jobs
from torchserve_neuron_lstm.archiver_ext.evaluation.manifest_builder import BuildInput, build_manifest
from torchserve_neuron_lstm.archiver_ext.evaluation.selection import measured_totals
from torchserve_neuron_lstm.backends.eager import Eager
from torchserve_neuron_lstm.backends.interface import DEFAULTS, LoadedProgram, Weights
from torchserve_neuron_lstm.backends.partitioning.backend import PartitionedBackend
from torchserve_neuron_lstm.backends.registry import get_backend
from torchserve_neuron_lstm.bucketing.shapes import BucketGrid, ProgramRole
from torchserve_neuron_lstm.config.load import parse_config
from torchserve_neuron_lstm.config.manifest import Manifest
from torchserve_neuron_lstm.lowering import lower

GRID = BucketGrid((1, 4), (8, 16))


def compiled(backend: str, *parts: ProgramRole) -> dict[str, str]:
    programs = {part: Path(f"{part}.pt2") for part in parts}
    jobs = compile_jobs(get_backend(backend), programs, GRID, Path("work"), DEFAULTS)
    assert all(job.program == programs[job.part] for job in jobs)
    return {str(job.directory): str(job) for job in jobs}


@pytest.mark.parametrize("parts", [("sequence",), ("chunk",), ("chunk", "head"), ("chunk", "start", "head")])
def test_an_engine_for_every_shape_compiles_each_part_once(parts: tuple[ProgramRole, ...]) -> None:
    assert compiled("eager", *parts) == {f"work/programs/eager/{part}/any": f"eager {part} any shape" for part in parts}


def test_an_engine_of_fixed_shapes_compiles_pieces_by_the_grid_and_ends_by_its_batches() -> None:
    assert compiled("inductor", "chunk", "start", "head") == {
        "work/programs/inductor/chunk/b1_t8": "inductor chunk 1 x 8",
        "work/programs/inductor/chunk/b1_t16": "inductor chunk 1 x 16",
        "work/programs/inductor/chunk/b4_t8": "inductor chunk 4 x 8",
        "work/programs/inductor/chunk/b4_t16": "inductor chunk 4 x 16",
        "work/programs/inductor/start/b1_t1": "inductor start 1 x 1",
        "work/programs/inductor/start/b4_t1": "inductor start 4 x 1",
        "work/programs/inductor/head/b1_t1": "inductor head 1 x 1",
        "work/programs/inductor/head/b4_t1": "inductor head 4 x 1",
    }


SLOW_S = 0.02


class SlowWherePadded(Eager):
    """Eager over whole sequences, slowed down where a row ends before the others."""

    whole_sequences = "its rows end by themselves"
    ragged = True

    def __init__(self) -> None:
        self.seen: set[tuple[int, ...]] = set()
        """The lengths of each call, after its timesteps."""

    def load(self, directory: Path, weights: Weights, host: Mapping[str, str], threads: int) -> LoadedProgram:
        run = super().load(directory, weights, host, threads)

        def slow(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
            steps, lengths = inputs[0].shape[1], inputs[-1].tolist()
            self.seen.add((steps, *lengths))
            if min(lengths) < steps:
                time.sleep(SLOW_S)
            return run(inputs)

        return slow


class InTheGrid(SlowWherePadded):
    """An engine for which the amount of padding in a call is fixed."""

    any_shape = False


class NotRagged(SlowWherePadded):
    ragged = False


def attempted(engine: SlowWherePadded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Manifest, float]:
    monkeypatch.setattr("torchserve_neuron_lstm.handlers.runtime.loader.get_backend", lambda name: engine)
    case = next(case for case in CASES if case.name == "AttentionPooling")
    torch.manual_seed(0)
    model, config = case.make().eval(), parse_config(case.yaml, "model-config.yaml")
    program = lower(model, config)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    build = BuildInput(tmp_path, "weights.pt", config, threads=1)
    trials.write_constants(tmp_path, program.constants)
    for part, exported in program.parts.items():
        directory = tmp_path / layout.variant_directory(engine.name, part, None)
        directory.mkdir(parents=True)
        engine.compile(exported, None, directory)
    monkeypatch.setattr(
        evaluate, "verify_programs", lambda variants, cases, report: {}
    )  # its answers are not under test

    def report(done: int, total: int, text: str) -> None:
        """Ignore the progress."""

    found = evaluate.evaluate_engine(build, make_candidate(engine, program, streams=False), (), (), report)
    return found.result.manifest, measured_totals([found])[engine.name]


class SeparatelyEstimated(PartitionedBackend):
    """A partitioned engine with an estimate that the engine within does not have."""

    def estimate_us(self, directory: Path) -> float | None:
        """Estimate the same for every program."""
        return 7.0


def test_estimates_of_a_partitioned_program_are_not_asked_of_the_engine_within(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "AttentionPooling")
    config = parse_config(case.yaml, "model-config.yaml")
    candidate = make_candidate(SeparatelyEstimated(Eager()), lower(case.make().eval(), config), streams=False)

    manifest = build_manifest(BuildInput(tmp_path, None, config, threads=1), candidate)

    assert {variant.estimate_us for variant in manifest.variants} == {7.0}


def test_an_engine_is_judged_by_what_it_takes_to_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost is that of planned batches with evenly spread lengths, not the sum of full calls."""
    manifest, total_ms = attempted(InTheGrid(), tmp_path, monkeypatch)

    assert manifest.grid == BucketGrid((1, 2, 4), (4, 9, 16))
    assert total_ms >= 1000 * SLOW_S * 2  # neither 8, 16 nor 4, 8, 12, 16 are the lengths of buckets


@pytest.mark.ci
def test_what_padding_costs_is_measured_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = SlowWherePadded()
    manifest, _ = attempted(engine, tmp_path, monkeypatch)
    costs, padding = manifest.costs, manifest.padding_costs

    assert [(cost.part, cost.bucket) for cost in padding] == [(cost.part, cost.bucket) for cost in costs]
    for batch, length in (cost.bucket for cost in costs):
        assert {(length, *[length] * batch), (length, length, *[1] * (batch - 1))} <= engine.seen
    assert min(cost.milliseconds for cost in padding if cost.bucket.batch > 1) >= 1000 * SLOW_S


@pytest.mark.ci
@pytest.mark.few(1)
@pytest.mark.parametrize("engine", [InTheGrid(), NotRagged()])
def test_padding_is_not_measured_where_it_costs_as_data_does_or_is_not_chosen(
    engine: SlowWherePadded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, _ = attempted(engine, tmp_path, monkeypatch)

    assert manifest.costs
    assert manifest.padding_costs == ()
