"""Tables, names and numbers of the documentation are those of the code."""

import inspect
import random
import re
from collections import Counter
from pathlib import Path

import pytest
import torch
from shown import ROOT, blocks, page, table
from tools.bench.__main__ import PROGRAMS
from vollo_models import InTime, program_of

from torchserve_neuron_lstm import tracing
from torchserve_neuron_lstm.backends import registry, versions
from torchserve_neuron_lstm.backends.aws_neuron import neuron, neuronx, unrolled
from torchserve_neuron_lstm.backends.exported_program import specialize
from torchserve_neuron_lstm.backends.interface import Backend
from torchserve_neuron_lstm.backends.partitioning.partition import partition
from torchserve_neuron_lstm.backends.vollo import compiler as vollo_build
from torchserve_neuron_lstm.backends.vollo import engine as vollo
from torchserve_neuron_lstm.backends.vollo import rewrite, translate
from torchserve_neuron_lstm.backends.vollo import streaming as vollo_streaming
from torchserve_neuron_lstm.bucketing.bucket_lengths import clip_histogram, optimal_lengths, padding_stats
from torchserve_neuron_lstm.bucketing.shapes import Bucket
from torchserve_neuron_lstm.config.buckets import AutoLengths, Buckets
from torchserve_neuron_lstm.config.forward import MaskConfig
from torchserve_neuron_lstm.config.histogram import read_lengths
from torchserve_neuron_lstm.config.partitioner import (
    AnalyzeParameters,
    PartitionerBlock,
    PartitionerConfig,
    TraceArguments,
)
from torchserve_neuron_lstm.config.schema import InputConfig, ModelArguments, NeuronLstmBlock
from torchserve_neuron_lstm.handlers.batch import BatchStats
from torchserve_neuron_lstm.handlers.metrics import METRICS, BatchMetrics
from torchserve_neuron_lstm.hosts.torchserve.properties import ServeOptions, properties
from torchserve_neuron_lstm.inference import open_archive, values
from torchserve_neuron_lstm.inference.errors import ArchiveError

FIELDS = NeuronLstmBlock.model_fields
SETTINGS = properties(ServeOptions(()), {"a": "a.mar"}, 1, Path("/metrics.yaml"))
TOLD_ELSEWHERE = re.compile(r".*_address|grpc_.*|load_models|disable_token_authorization")
"""Settings of the parts on ports and tokens."""
ENGINES = tuple(registry.ENGINES)


def rows(name: str, heading: str) -> dict[str, list[str]]:
    """The other cells of a page's table, by each name in its first column."""
    return {key: others for keys, *others in table(page(name), heading) for key in re.findall(r"`([\w.]+)`", keys)}


def test_every_key_of_the_yaml_has_a_row_in_the_order_of_the_schema() -> None:
    told = rows("configuration", "| key | default")

    assert list(told) == list(FIELDS)
    required = [name for name, field in FIELDS.items() if field.is_required()]
    assert [name for name, (default, *_) in told.items() if default == "required"] == required


def test_written_defaults_are_those_of_the_schema() -> None:
    for name, (said, *_) in rows("configuration", "| key | default").items():
        default = FIELDS[name].default
        if isinstance(default, str):
            assert said == f"`{default}`"
        if said == "none":
            assert default in (None, ModelArguments())


def test_keys_within_keys_are_named() -> None:
    told = rows("configuration", "| key | default")
    for key, block in (("model", ModelArguments), ("inputs", InputConfig), ("buckets", Buckets), ("mask", MaskConfig)):
        names = [field.alias or name for name, field in block.model_fields.items()]
        assert all(f"`{name}`" in told[key][1] for name in names)
    assert list(rows("tuning", "| key | meaning")) == list(AutoLengths.model_fields)


def test_partitioning_has_every_option_and_its_default() -> None:
    told, written = rows("partitioning", "| key | default"), PartitionerBlock()

    assert list(told) == list(PartitionerBlock.model_fields)
    for name, (default, *_) in told.items():
        said = None if default == "none" else float(default)
        assert (getattr(written, name) or None) == said
    for name in (*TraceArguments.model_fields, *AnalyzeParameters.model_fields):
        assert f"`{name}`" in page("partitioning")


def test_every_metric_has_a_row_with_its_type_and_label() -> None:
    told = [(name, kind, label.strip("`")) for name, kind, label, _ in table(page("metrics"), "| metric | type")]

    assert told == [(f"`{metric.name}`", metric.type, metric.dimension or "") for metric in METRICS]


def test_the_questions_ask_for_metrics_that_there_are() -> None:
    names = {metric.name for metric in METRICS if metric.type == "counter"}
    names |= {f"{metric.name}_{part}" for metric in METRICS if metric.type == "histogram" for part in ("sum", "count")}

    asked = set(re.findall(r"neuron_lstm_\w+", blocks(page("metrics"), "promql")[0]))

    assert len(asked) >= 5
    assert asked <= names


def test_the_line_of_lengths_is_the_one_that_a_batch_leaves() -> None:
    counts = BatchMetrics(requests=4, stats=BatchStats(lengths=(12, 50, 12, 12)))

    assert blocks(page("metrics"), "text")[0] == f"neuron_lstm lengths {counts.lengths_text}\n"


def test_serve_has_every_setting_that_is_written_and_its_value() -> None:
    told = {name: value for name, (value, *_) in rows("serve", "| setting | here").items()}
    exact = {name: value.strip("`") for name, value in told.items() if re.fullmatch(r"`[^`]*`|\d+", value)}

    assert set(told) == {name for name in SETTINGS if not TOLD_ELSEWHERE.fullmatch(name)}
    assert len(exact) >= 6
    assert exact == {name: SETTINGS[name] for name in exact}


def code(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def takes(engine: Backend) -> list[str]:
    served = "each bucket" if not engine.polymorphic else "every shape" if engine.any_shape else "the grid's shapes"
    execution = "whole sequences or chunks"
    if engine.whole_sequences is not None:
        execution = "whole sequences; chunks for sessions"
    return [served, execution, code(engine.precisions), code(engine.options), tried(engine.name)]


def tried(name: str) -> str:
    if name in registry.auto_engines("float32"):
        return "yes"
    if name in registry.auto_engines("bfloat16"):
        return "with `precision: bfloat16`"
    return "as a fallback" if name in registry.auto_engines("fallback") else ""


def has(engine: Backend) -> list[str]:
    example = ROOT / "examples" / "cpp" / engine.name
    return [
        "in each program" if engine.inlines_weights else "separate",
        "yes" if type(engine).estimate_us is not Backend.estimate_us else "",
        "emulated" if type(engine).simulation is not Backend.simulation else "",
        f"[yes](../examples/cpp/{engine.name})" if example.is_dir() else "",
    ]


@pytest.mark.parametrize(("heading", "told"), [("| backend | one program", takes), ("| backend | weights", has)])
def test_the_tables_of_engines_are_what_they_say(heading: str, told: object) -> None:
    assert callable(told)
    assert rows("backends", heading) == {name: told(registry.get_backend(name)) for name in ENGINES}


def test_every_engine_is_told_what_it_was_run_on() -> None:
    assert set(rows("backends", "| backend | in the tests")) == set(ENGINES)


def test_every_engine_is_told_what_it_pads_to() -> None:
    told = rows("tuning", "| engine | a sequence")

    assert set(told) == set(ENGINES)
    for name, (pads, *_) in told.items():
        engine = registry.get_backend(name)
        expected = "its bucket length"
        if engine.polymorphic and engine.any_shape:
            expected = "nothing" if engine.ragged else "the longest sequence of its call"
        assert pads.startswith(expected), name


def test_every_optional_member_of_an_engine_is_described() -> None:
    members = {name for name in vars(Backend) if not name.startswith("_") and name not in Backend.__abstractmethods__}
    shown = {"options", "polymorphic", "any_shape", "precisions", "unavailable", "host", "refusal"}  # in the example

    assert set(rows("backends", "| member | meaning")) == (members - shown) | {"program.chain", "program.wake"}


def test_every_option_of_tracing_is_named() -> None:
    names = {
        name for func in (tracing.trace, tracing.bucket_model_trace) for name in inspect.signature(func).parameters
    }
    names |= set(inspect.signature(tracing.BucketModelConfig).parameters) - {"_", "bucket_kernel", "bucket_config"}
    names -= {"func", "args", "bucket_config"}

    assert {name for name in [*names, *tracing.__all__] if name not in page("tracing")} == {"Traced"}


def test_every_public_name_of_an_archive_is_on_its_page() -> None:
    public = [name for name in vars(open_archive.OpenArchive) if not name.startswith("_")]
    errors = [ArchiveError.__name__, values.InvalidSequence.__name__]

    assert [name for name in [*public, *errors] if name not in page("python")] == ["close"]


def test_targets_and_programs_of_measurements_are_there() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)

    assert set(re.findall(r"`make ([\w-]+)", page("benchmarks"))) <= {*targets}
    assert set(re.findall(r"python -m tools\.bench ([a-z]+)", page("benchmarks"))) <= {*PROGRAMS}
    assert all(f"make {name}" in page("benchmarks") for name in targets if name.startswith("bench"))


def test_the_shares_of_padding_are_right() -> None:
    histogram = clip_histogram(read_lengths(ROOT / "examples" / "lengths" / "lognormal.txt"), 330, truncate=False)
    grids = ((16, 32, 64, 128, 256, 330), *(optimal_lengths(histogram, count) for count in (6, 8, 16)))
    generator = random.Random(1)
    fresh = Counter(min(330, max(1, int(generator.lognormvariate(3.0, 0.7)))) for _ in range(10_000))

    shares = [padding_stats(histogram, lengths).ratio for lengths in grids]

    assert [f"{100 * share:.0f} %" for share in shares] == re.findall(r"\d+ %", page("tuning"))[:4]
    assert 0.004 < padding_stats(fresh, grids[2]).ratio - shares[2] < 0.006


def test_the_picture_of_tuning_is_there() -> None:
    (link,) = re.findall(r"!\[.*\]\((.*)\)", page("tuning"))
    data = (ROOT / "docs" / link).read_bytes()

    assert data.startswith(b"\x89PNG")
    assert int.from_bytes(data[16:20], "big") == 1440


def test_what_neuron_needs_is_named_as_the_refusals_name_it() -> None:
    for word in ("pip.repos.neuron.amazonaws.com", "torch 2.9", "SDK 2.31 or earlier"):
        assert word in neuronx.NeuronX.toolchain.install
        assert word in page("neuron")
    assert "torch 1.13 and Python up to 3.10" in neuron.Neuron.toolchain.install
    assert "torch 1.13 and Python up to 3.10" in page("neuron")
    assert f"`{versions.VARIABLE}=cpu`" in page("neuron")


def test_programs_of_neuron_grow_with_time_as_their_page_says() -> None:
    weights = [torch.zeros(8, 3), torch.zeros(8, 2), torch.zeros(8), torch.zeros(8)]
    state = torch.zeros(1, 4, 2)

    def layer(x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return unrolled.lstm(x, lengths, state, state, weights, True, 1, False, True)

    counts = []
    for time in (64, 128):
        graph = torch.jit.trace(layer, (torch.zeros(4, time, 3), torch.ones(4).long()), check_trace=False).graph
        counts.append(sum(node.kind().startswith("aten::") for node in graph.nodes()))

    assert round((counts[1] - counts[0]) / 64) == 19
    assert counts[1] == pytest.approx(2443, abs=10)


def test_the_licence_of_vollo_is_told_before_the_command_that_accepts_it() -> None:
    assert page("vollo").index("EULA") < page("vollo").index("pip install")
    assert vollo.INSTALL_HINT.index("pip install") < vollo.INSTALL_HINT.index("EULA")
    assert "torchserve-neuron-lstm[vollo]" in "".join(blocks(page("vollo"), "bash"))


def test_nothing_installs_vollo_by_itself() -> None:
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    naming = [line for line in lines if "vollo-" in line]

    assert naming == ['vollo = ["vollo-compiler==29.0.0", "vollo-torch==29.0.0"]']
    assert not any("[vollo" in line or ",vollo" in line for line in lines)


def test_numbers_and_names_of_vollo_are_the_codes() -> None:
    assert f"up to {rewrite._MOST_STEPS} timesteps" in page("vollo")
    assert vollo_build._FORMER_NAMES["ia_840f_c3b64"] in page("vollo")
    assert "ia_840f_c3b64" in page("vollo")
    (example,) = blocks(page("vollo"), "python")
    for name in ("compile", "step", "restart"):
        assert f".{name}(" in example
        assert callable(getattr(vollo_streaming.StreamingProgram, name))


@pytest.mark.ci
def test_a_model_in_time_is_one_program_of_vollo_and_a_last_state_two() -> None:
    class Last(InTime):
        def forward(self, x: torch.Tensor, lengths: torch.Tensor, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
            zeros = x.new_zeros(1, x.shape[0], 16)
            weights = [getattr(self.core, name) for name in self.core._flat_weights_names]
            _, h, _ = torch.ops.neuron_lstm.lstm(x, lengths, zeros, zeros, weights, True, 1, False, False)
            return (self.linear(h[-1]),)

    for module, ways in ((InTime(), 1), (Last(), 2)):
        program = rewrite.rewrite_program(specialize(program_of(module), Bucket(4, 6)))
        config = PartitionerConfig(model_support_percentage_threshold=0)
        segments = partition(program, lambda node: translate.refusal(node) is None, config).segments

        assert sum(segment.place == "device" for segment in segments) == ways
