from typing import Any

import jsonschema
import pytest
import yaml

from torchserve_neuron_lstm.archiver_ext.commands.schema import json_schema
from torchserve_neuron_lstm.config.diagnostics import ConfigError
from torchserve_neuron_lstm.config.load import parse_config
from torchserve_neuron_lstm.config.partitioner import PartitionerBlock
from torchserve_neuron_lstm.config.schema import ServingConfig

from .config_texts import problems, small_block

YAML = """\
minWorkers: 1
maxWorkers: 1
batchSize: 4
maxBatchDelay: 2
neuron_lstm:
  inputs: {ids: {dtype: int64, shape: [batch, time]}}
  buckets: {batch: [1], length: [4]}
  BACKEND
"""


def parsed(backend: str) -> ServingConfig:
    return parse_config(YAML.replace("BACKEND", backend), "model-config.yaml")


@pytest.mark.parametrize(
    ("line", "engine", "tried"),
    [
        *((line, "auto", None) for line in ("", "backend: auto", "backend: {auto: {}}", "backend: {auto: {try: }}")),
        ("backend: {auto: {try: [native, inductor]}}", "auto", ("native", "inductor")),
        ("backend: native", "native", None),
    ],
)
def test_auto_tries_the_engines_of_the_yaml_in_order(line: str, engine: str, tried: tuple[str, ...] | None) -> None:
    config = parsed(line)

    assert (config.engine, config.auto.engines) == (engine, tried)


@pytest.mark.parametrize(
    ("backend", "path", "message"),
    [
        ("{auto: {try: []}}", ".auto.try", "expected 1 or more entries, got none"),
        ("{auto: {try: native}}", ".auto.try", "expected a list, got the text 'native'"),
        ("{auto: {try: [native, native]}}", ".auto.try", "expected different names, got native twice"),
        ("{auto: {try: [auto]}}", ".auto.try", "expected the names of backends, got auto"),
        ("{auto: {names: [native]}}", ".auto.names", "is not a key here: expected one of try"),
        ("{native: {}}", ".native", "is not a key here"),
        ("{auto: 60s}", ".auto", "expected a mapping of keys, got the text '60s'"),
        ("[native]", "", "expected text, got a list"),
    ],
)
def test_an_error_has_its_path_and_line(backend: str, path: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parsed(f"backend: {backend}")

    assert f"model-config.yaml:8: neuron_lstm.backend{path}: {message}" in str(refused.value)


def test_compiler_options_need_one_engine() -> None:
    with pytest.raises(ConfigError, match="compiler_args: requires the name of one backend as well"):
        parsed("backend: {auto: {try: [inductor]}}\n  compiler_args: -O1")


def test_a_valid_configuration_may_be_given_again() -> None:
    given: Any = parsed("backend: {auto: {try: [native]}}")

    assert ServingConfig.model_validate({**dict(given)}).auto.engines == ("native",)


def configured(**keys: str) -> ServingConfig:
    text = small_block(**keys)
    jsonschema.validate(yaml.safe_load(text), json_schema())
    return parse_config(text, "f")


def complaints(**keys: str) -> list[str]:
    return problems(small_block(**keys))


@pytest.mark.parametrize("written", ["--target trn1 '-O 1'", "[--target, trn1, -O 1]"])
def test_arguments_are_a_text_or_a_list(written: str) -> None:
    config = configured(backend="neuronx", compiler_args=f'"{written}"' if written.startswith("-") else written)
    assert config.compiler_args == ("--target", "trn1", "-O 1")


def test_a_text_that_no_shell_would_take_is_refused() -> None:
    (message,) = complaints(backend="neuronx", compiler_args='"--target \'trn1"')
    assert message.startswith("neuron_lstm.compiler_args: expected arguments as a shell takes them, got ")
    (message,) = complaints(backend="neuronx", compiler_args="[1]")
    assert message.startswith("neuron_lstm.compiler_args: expected a text or a list of texts")


@pytest.mark.parametrize("name", ["sort", "1x::2\u00e9", "aten::2", "aten::sort.stable"])
def test_an_operator_name_that_no_operator_has_is_refused(name: str) -> None:
    (message,) = complaints(backend="eager", partitioner_config=f"{{ops_to_partition: ['{name}']}}")
    assert message.startswith(
        "neuron_lstm.partitioner_config.ops_to_partition[0]: expected an operator as in aten::sort"
    )


def test_they_are_for_one_compiler() -> None:
    keys = ("compiler_workdir", "compiler_args", "compiler_python")
    told = complaints(**dict.fromkeys(keys, "x"), partitioner_config="{}")
    assert [line.split(":")[0].split(".")[1] for line in told] == [*keys, "partitioner_config"]
    assert all("requires the name of one backend as well" in line for line in told)


def test_the_partitioner_has_the_defaults_of_the_tracing_api() -> None:
    assert configured(backend="eager").partitioner_config is None
    assert configured(backend="eager", partitioner_config="{}").partitioner_config == PartitionerBlock(
        trace_kwargs=None,
        model_support_percentage_threshold=0.5,
        min_subgraph_size=-1,
        max_subgraph_count=-1,
        ops_to_partition=(),
        analyze_parameters=None,
    )


def test_every_wrong_option_of_the_partitioner_is_told_at_once() -> None:
    wrong = (
        "{model_support_percentage_threshold: 2, min_subgraph_size: 0, max_subgraph_count: -2,"
        " ops_to_partition: [sort], analyze_parameters: {max_worker: 3}, trace_kwargs: {compiler_arg: x}}"
    )
    told = complaints(backend="eager", partitioner_config=wrong)
    assert {line.split(": ")[0].removeprefix("neuron_lstm.partitioner_config.") for line in told} == {
        *("model_support_percentage_threshold", "min_subgraph_size", "max_subgraph_count"),
        *("ops_to_partition[0]", "analyze_parameters.max_worker", "trace_kwargs.compiler_arg"),
    }
