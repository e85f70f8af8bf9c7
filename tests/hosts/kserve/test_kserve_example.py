"""The files of examples/kserve name what exists; nothing here runs Kubernetes or Docker."""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples" / "kserve"
SERVICE: dict[str, Any] = yaml.safe_load((FOLDER / "inference-service.yaml").read_text())
CONTAINER: dict[str, Any] = SERVICE["spec"]["predictor"]["containers"][0]
DOCKERFILE = (FOLDER / "Dockerfile").read_text()


PARSED = """
import json
from torchserve_neuron_lstm.hosts.kserve import arguments
print(json.dumps(vars(arguments().parse_args())))
"""


def test_every_argument_of_the_container_is_one_of_the_server() -> None:
    """In a process of its own: KServe reads the command line when it is imported."""
    done = subprocess.run([sys.executable, "-c", PARSED, *CONTAINER["args"]], capture_output=True, check=True)
    given = argparse.Namespace(**json.loads(done.stdout))

    assert (given.archive, given.model_name, given.threads) == ("/mnt/models/tagger.mar", "tagger", 2)
    assert [port["containerPort"] for port in CONTAINER["ports"]] == [given.http_port]
    assert CONTAINER["readinessProbe"]["httpGet"] == {"path": "/v2/health/ready", "port": given.http_port}
    assert CONTAINER["resources"]["requests"]["cpu"] == str(given.threads)


def test_the_service_is_one_of_kserve() -> None:
    assert (SERVICE["apiVersion"], SERVICE["kind"]) == ("serving.kserve.io/v1beta1", "InferenceService")
    assert CONTAINER["name"] == "kserve-container"
    assert re.search(rf"-t {re.escape(CONTAINER['image'])} ", DOCKERFILE)


def test_the_image_installs_what_the_checkout_has() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    extras = re.search(r'"\.\[(.*)\]"', DOCKERFILE)

    assert extras is not None
    assert all(re.search(rf"^{extra} = ", project, re.MULTILINE) for extra in extras[1].split(","))
    assert all((ROOT / file).is_file() for file in re.findall(r"-c (\S+)", DOCKERFILE))
    assert 'ENTRYPOINT ["python", "-m", "torchserve_neuron_lstm.hosts.kserve"]' in DOCKERFILE
    assert (ROOT / "hosts" / "kserve.py").is_file()
    assert re.findall(r"^USER (.*)$", DOCKERFILE, re.MULTILINE) == [str(CONTAINER["securityContext"]["runAsUser"])]
    assert "Not built here" in DOCKERFILE
    assert "Not run here" in (FOLDER / "inference-service.yaml").read_text()
