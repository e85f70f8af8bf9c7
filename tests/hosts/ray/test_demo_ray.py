"""The example of a cluster: its config file is valid, and its demo loses no request."""

import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from example_runs import run_example
from ray.serve.schema import ServeDeploySchema

from torchserve_neuron_lstm.hosts import ray as adapter

FOLDER = Path(__file__).parents[3] / "examples" / "ray_serve"
CONFIG: dict[str, Any] = yaml.safe_load((FOLDER / "serve.yaml").read_text())


def test_the_config_file_is_one_of_ray() -> None:
    parsed = ServeDeploySchema.model_validate(CONFIG)

    assert (parsed.http_options.port, parsed.grpc_options.port) == (8000, 9000)
    assert [one.import_path for one in parsed.applications] == [f"{adapter.__name__}:app"]
    for path in parsed.grpc_options.grpc_servicer_functions:
        module, _, name = path.rpartition(".")
        assert callable(getattr(__import__(module, fromlist=[name]), name))


def test_its_arguments_are_those_of_the_application() -> None:
    (application,) = CONFIG["applications"]
    arguments = adapter.Arguments.model_validate(application["args"])

    assert len(arguments.archives) == 2
    assert arguments.max_replicas is not None
    assert arguments.max_replicas > arguments.replicas


@pytest.mark.long
@pytest.mark.timeout(420)
def test_the_demo_answers_every_request_and_cleans_up() -> None:
    with tempfile.TemporaryDirectory(prefix="d-") as temporary:
        words = ("--steps", "20", "--seconds", "30")
        shown = run_example(FOLDER / "demo.py", *words, temporary=Path(temporary), seconds=400)
    found = {name: int(count) for name, count in re.findall(r"^ ?([a-z][a-z -]+?) +(\d+) *$", shown, re.MULTILINE)}

    assert "Killed the replica" in shown
    assert re.search(r"Removed a node, with \d of 2 replicas", shown)
    assert found["refused for good"] == 0
    assert found["requests"] == found["equal to the model in eager mode"] > 20
    assert found["requests"] == found["answered at first"] + found["answered when sent again"]
