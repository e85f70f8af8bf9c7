import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from fake_model import GRID
from plans import useful_timesteps
from tiny_archive import change_manifest, make_model

from torchserve_neuron_lstm.backends.eager import Eager
from torchserve_neuron_lstm.backends.interface import LoadedProgram, Weights
from torchserve_neuron_lstm.bucketing.cost import CostModel
from torchserve_neuron_lstm.bucketing.errors import SequenceTooLong
from torchserve_neuron_lstm.bucketing.plan import Plan, ProgramCall
from torchserve_neuron_lstm.bucketing.shapes import Bucket, DynamicShape, Shapes
from torchserve_neuron_lstm.config.manifest import MeasuredCost, Variant, read_manifest
from torchserve_neuron_lstm.handlers.runtime import loader as loading
from torchserve_neuron_lstm.handlers.runtime import requirements
from torchserve_neuron_lstm.handlers.runtime.loader import load_archive, planner_from_manifest


def test_every_bucket_gives_the_eager_models_answer(pristine: Path) -> None:
    variants, model = load_archive(pristine, threads=1), make_model()
    ids = torch.randint(0, 20, (3,))
    for bucket in GRID.buckets:
        padded = torch.full(tuple(bucket), 7)
        padded[-1, :3] = ids
        lengths = torch.full((bucket.batch,), 3)

        (sums,) = variants.run("sequence", bucket, [padded, lengths])

        torch.testing.assert_close(sums[-1, :3], model(ids[None], lengths[:1])[0][0])


def test_costs_are_those_measured_or_a_stand_in_until_they_are(archive: Path) -> None:
    """Packaging loads an archive before it has measured the costs."""
    assert load_archive(archive, threads=1).planner.cost.of(Bucket(4, 8)) == 0.5

    change_manifest(archive, costs=())

    assert load_archive(archive, threads=1).planner.cost.of(Bucket(4, 8)) > 0


def test_each_part_has_its_own_costs(pristine: Path) -> None:
    manifest = replace(
        read_manifest(pristine),
        costs=(MeasuredCost("chunk", Bucket(4, 8), 2.0), MeasuredCost("head", Bucket(4, 1), 0.25)),
        padding_costs=(MeasuredCost("chunk", Bucket(4, 8), 0.5),),
    )

    chunk, head = loading.measured_cost(manifest, "chunk"), loading.measured_cost(manifest, "head")

    assert chunk is not None
    assert head is not None
    assert (chunk.milliseconds, head.milliseconds) == ({Bucket(4, 8): 2.0}, {Bucket(4, 1): 0.25})
    assert loading.measured_cost(manifest, "start") is None


@pytest.mark.parametrize(
    ("shapes", "longest", "found"),
    [("grid", 8, GRID), ("any", 100, DynamicShape(4, 100)), ("any", 8, DynamicShape(4, 8))],
)
def test_the_planner_is_told_what_the_programs_take(
    pristine: Path, shapes: Literal["grid", "any"], longest: int, found: Shapes
) -> None:
    manifest = replace(read_manifest(pristine), shapes=shapes, longest=longest)

    assert loading.supported_shapes(manifest) == found
    assert useful_timesteps(planner_from_manifest(manifest).plan([longest]), [longest]) == longest
    with pytest.raises(SequenceTooLong):
        planner_from_manifest(manifest).plan([longest + 1])


def measured(call_ms: float, step_ms: float, row_step_ms: float) -> tuple[MeasuredCost, ...]:
    """Costs of calls of 1 to 4 rows: per call, per timestep of the call, and per timestep of each row."""
    shapes = [Bucket(batch, length) for batch in (1, 2, 3, 4) for length in (10, 50)]
    return tuple(MeasuredCost("sequence", b, call_ms + b.length * (step_ms + row_step_ms * b.batch)) for b in shapes)


CHEAP, DEAR = measured(0.05, 0.01, 0.0), measured(0.05, 0.01, 0.01)


@pytest.mark.parametrize(
    ("calls", "padding", "runs"), [(DEAR, CHEAP, 1), (CHEAP, DEAR, 3), (CHEAP, (), 1), (DEAR, (), 3)]
)
def test_plans_are_made_by_what_padding_costs_where_that_is_known(
    pristine: Path, calls: tuple[MeasuredCost, ...], padding: tuple[MeasuredCost, ...], runs: int
) -> None:
    manifest = replace(read_manifest(pristine), shapes="any", longest=50, costs=calls, padding_costs=padding)
    lengths = [2, 50, 1, 20]

    plan = planner_from_manifest(manifest).plan(lengths)

    assert len(plan.calls) == runs
    assert sorted(row for run in plan.calls for row in run.rows) == [0, 1, 2, 3]


def test_the_plan_of_a_single_sequence_is_made_once(pristine: Path) -> None:
    archive = load_archive(pristine, threads=1)

    plans = [archive.plan((length,)) for length in (3, 8, 3)]

    assert plans == [archive.planner.plan((length,)) for length in (3, 8, 3)]
    assert plans[0] is plans[2]
    for _ in range(2):
        with pytest.raises(SequenceTooLong):
            archive.plan((archive.manifest.longest + 1,))


class OneCallForEachThousand:
    """A planner of chunks of a thousand timesteps."""

    cost = CostModel({Bucket(1, 1000): 1.0})

    def plan(self, lengths: Sequence[int]) -> Plan:
        return Plan(tuple(ProgramCall(Bucket(1, 1000), (0,), start) for start in range(0, lengths[0], 1000)))


def test_neither_plans_of_many_calls_are_kept_nor_those_of_all_lengths(pristine: Path) -> None:
    """A long sequence in short chunks has hundreds of calls, and there are as many lengths as timesteps."""
    archive = replace(load_archive(pristine, threads=1), planner=OneCallForEachThousand())

    few, many = (weakref.ref(archive.plan([length])) for length in (8000, 100_000))
    assert few() is archive.plan([8000])
    assert many() is None
    plans = [weakref.ref(archive.plan([length])) for length in range(1, 10_000)]
    assert 0 < sum(plan() is not None for plan in plans) <= 4096


def test_a_program_for_every_shape_is_run_in_any(archive: Path) -> None:
    change_manifest(archive, shapes="any", longest=50)
    variants, model = load_archive(archive, threads=1), make_model()
    lengths = [37, 50, 3, 1, 12]
    requests = [[torch.randint(0, 20, (length,))] for length in lengths]
    plan = variants.plan(lengths)

    answers, _ = variants.run_plan(plan, requests, lengths)

    assert not {run.bucket for run in plan.calls} & set(GRID.buckets)
    for (ids,), (sums,), length in zip(requests, answers, lengths, strict=True):
        torch.testing.assert_close(sums, model(ids[None], torch.tensor([length]))[0][0])


def test_the_weights_are_loaded_once_for_all_variants(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Recording(Eager):
        def load(self, directory: Path, weights: Weights, host: Mapping[str, str], threads: int) -> LoadedProgram:
            seen.append((directory.name, weights["embed.weight"].data_ptr(), threads))
            return lambda inputs: [torch.zeros(*inputs[0].shape, 3)]

    monkeypatch.setattr("torchserve_neuron_lstm.handlers.runtime.loader.get_backend", lambda name: Recording())
    apart = tuple(Variant("sequence", bucket, f"programs/{bucket.batch}") for bucket in GRID.buckets)
    change_manifest(archive, variants=apart)

    load_archive(archive, threads=3)

    assert [name for name, _, _ in seen] == ["1", "1", "4", "4"]
    assert len({pointer for _, pointer, _ in seen}) == 1
    assert {threads for _, _, threads in seen} == {3}


def test_a_program_that_answers_other_than_declared_or_misses_its_engine_does_not_load(archive: Path) -> None:
    output = replace(read_manifest(archive).outputs[0], shape=("batch", "time", 4))
    change_manifest(archive, outputs=(output,))

    with pytest.raises(RuntimeError, match="declares output 'sums'"):
        load_archive(archive, threads=1)
    change_manifest(archive, requires=(("no-such-engine", "no_such_engine", "1.2.3"),))
    with pytest.raises(RuntimeError, match=r'pip install "no-such-engine>=1\.2\.3"'):
        load_archive(archive, threads=1)


def test_threads_are_the_callers_or_the_manifests_or_all_cores(archive: Path) -> None:
    change_manifest(archive, threads=2)

    assert load_archive(archive, threads=1).threads == 1
    assert load_archive(archive).threads == 2


@pytest.mark.parametrize(
    ("backend", "distribution", "packaged", "here", "runs"),
    [
        ("inductor", "torch", "2.13.0", "2.13.1+cpu", True),
        ("inductor", "torch", "2.13.1", "2.13.0", True),
        ("inductor", "torch", "2.13.0", "2.14.0", False),
        ("inductor", "torch", "2.13.0+cpu", "2.12.9", False),
        ("eager", "torch", "2.13.0", "2.14.0.dev20260101", True),
        ("eager", "torch", "2.13.0", "2.12.0", False),
        ("onnxruntime", "onnxruntime", "1.31.1", "1.31.1", True),
        ("onnxruntime", "onnxruntime", "1.9.0", "1.31.1", True),
        ("onnxruntime", "onnxruntime", "1.31", "1.31.0", True),
        ("onnxruntime", "onnxruntime", "1.31.1", "1.30.0", False),
    ],
)
def test_another_version_than_packaged_runs_or_is_refused_with_the_way_out(
    backend: str, distribution: str, packaged: str, here: str, runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requirements, "installed_version", lambda *_: here)
    needs = [(distribution, distribution, packaged)]
    if runs:
        requirements.check_requirements(needs, backend)
        return
    with pytest.raises(RuntimeError) as refused:
        requirements.check_requirements(needs, backend)
    assert f"this archive needs {distribution} " in str(refused.value)
    assert f"; version {here} is installed, which cannot run it" in str(refused.value)
    assert f'pip install "{distribution}' in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_module_that_another_distribution_brings_is_found() -> None:
    """The distribution onnxruntime-gpu contains onnxruntime."""
    assert requirements.installed_version("torch", "torch") is not None
    assert requirements.installed_version("torch-under-another-name", "torch") == torch.__version__
    assert requirements.installed_version("no-such-thing", "no_such_thing") is None
    assert requirements.installed_version("no-such-thing", "textwrap") is None
