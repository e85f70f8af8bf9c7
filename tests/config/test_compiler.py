"""YAML keys of the compiler and the partitioner: both forms, defaults, and refusals with their path."""

from __future__ import annotations

import jsonschema
import pytest
import yaml

from torchserve_neuron_lstm.config.compiler import PartitionerBlock
from torchserve_neuron_lstm.config.diagnostics import ConfigError
from torchserve_neuron_lstm.config.json_schema import json_schema
from torchserve_neuron_lstm.config.load import parse_config
from torchserve_neuron_lstm.config.schema import ServingConfig


def text_of(**keys: str) -> str:
    """A small configuration with these keys in its block."""
    block = {"inputs": "{x: {dtype: float32, shape: [batch, time, 3]}}", "buckets": "{batch: [1], length: [8]}", **keys}
    return "neuron_lstm:\n" + "".join(f"  {key}: {value}\n" for key, value in block.items())


def parsed(**keys: str) -> ServingConfig:
    """The same configuration, parsed and valid for an editor's schema."""
    text = text_of(**keys)
    jsonschema.validate(yaml.safe_load(text), json_schema())
    return parse_config(text, "f")


def complaints(**keys: str) -> list[str]:
    """The messages of a refusal, without line numbers."""
    with pytest.raises(ConfigError) as refused:
        parse_config(text_of(**keys), "f")
    return [f"{problem.path}: {problem.message}" for problem in refused.value.diagnostics]


@pytest.mark.parametrize("written", ["--target trn1 '-O 1'", "[--target, trn1, -O 1]"])
def test_arguments_are_a_text_or_a_list(written: str) -> None:
    """A text is split as a shell would."""
    config = parsed(backend="neuronx", compiler_args=f'"{written}"' if written.startswith("-") else written)
    assert config.compiler_args == ("--target", "trn1", "-O 1")


def test_a_text_that_no_shell_would_take_is_refused() -> None:
    """Examples are an open quotation, and a value that is no text."""
    (message,) = complaints(backend="neuronx", compiler_args='"--target \'trn1"')
    assert message.startswith("neuron_lstm.compiler_args: expected arguments as a shell takes them, got ")
    (message,) = complaints(backend="neuronx", compiler_args="[1]")
    assert message.startswith("neuron_lstm.compiler_args: expected a text or a list of texts")


@pytest.mark.parametrize("name", ["sort", "1x::2\u00e9", "aten::2", "aten::sort.stable"])
def test_an_operator_name_that_no_operator_has_is_refused(name: str) -> None:
    """`PartitionerConfig` of the tracing API does the same."""
    (message,) = complaints(backend="eager", partitioner_config=f"{{ops_to_partition: ['{name}']}}")
    assert message.startswith(
        "neuron_lstm.partitioner_config.ops_to_partition[0]: expected an operator as in aten::sort"
    )


def test_they_are_for_one_compiler() -> None:
    """`auto` tries several compilers, and each key is refused."""
    keys = ("compiler_workdir", "compiler_args", "compiler_python")
    told = complaints(**dict.fromkeys(keys, "x"), partitioner_config="{}")
    assert [line.split(":")[0].split(".")[1] for line in told] == [*keys, "partitioner_config"]
    assert all("requires the name of one backend as well" in line for line in told)


def test_the_partitioner_has_the_defaults_of_the_tracing_api() -> None:
    """{} enables it with defaults; a missing key disables it."""
    assert parsed(backend="eager").partitioner_config is None
    assert parsed(backend="eager", partitioner_config="{}").partitioner_config == PartitionerBlock(
        trace_kwargs=None,
        model_support_percentage_threshold=0.5,
        min_subgraph_size=-1,
        max_subgraph_count=-1,
        ops_to_partition=(),
        analyze_parameters=None,
    )


def test_every_wrong_option_of_the_partitioner_is_told_at_once() -> None:
    """Each message has the path."""
    wrong = (
        "{model_support_percentage_threshold: 2, min_subgraph_size: 0, max_subgraph_count: -2,"
        " ops_to_partition: [sort], analyze_parameters: {max_worker: 3}, trace_kwargs: {compiler_arg: x}}"
    )
    told = complaints(backend="eager", partitioner_config=wrong)
    assert {line.split(": ")[0].removeprefix("neuron_lstm.partitioner_config.") for line in told} == {
        "model_support_percentage_threshold",
        "min_subgraph_size",
        "max_subgraph_count",
        "ops_to_partition[0]",
        "analyze_parameters.max_worker",
        "trace_kwargs.compiler_arg",
    }
