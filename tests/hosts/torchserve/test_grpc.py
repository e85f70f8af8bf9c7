"""The gRPC client of docs/requests.md, for TorchServe itself. It needs grpcio: `make test-hosts` runs this test."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from host_archives import Archives
from rest import post_json
from shown import blocks, section
from torchserve_process import free_ports, serving

PAGE = section((Path(__file__).parents[3] / "docs" / "requests.md").read_text(), "gRPC")
MORE = """
with grpc.insecure_channel("127.0.0.1:7070") as channel:
    request = PredictionsRequest(model_name="scorer", input={"body": b"[[0.1, 0.2]]"})
    refused = json.loads(InferenceAPIsServiceStub(channel).Predictions(request).prediction)
print(json.dumps([scores, refused]))
"""


@pytest.mark.timeout(300)
def test_the_client_of_the_page_gets_an_answer_and_a_refusal(archives: Archives, tmp_path: Path) -> None:
    (commands,), (client,) = blocks(PAGE, "bash"), blocks(PAGE, "python")
    install, compile_messages = commands.split("\n", 1)
    assert shlex.split(install)[:2] == ["pip", "install"]
    subprocess.run(
        ["bash", "-ec", compile_messages.replace("python ", f"{shlex.quote(sys.executable)} ")],
        cwd=tmp_path,
        check=True,
    )
    (port,) = free_ports(1)

    with serving(archives.folder, {"scorer": "scorer.mar"}, settings={"grpc_inference_port": str(port)}) as server:
        program = (client + MORE).replace("7070", str(port))
        done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, capture_output=True)
        over_http = post_json(server.inference, "/predictions/scorer", [[0.1, 0.2, 0.3]]).json

    scores, refused = json.loads(done.stdout)
    assert scores == over_http
    assert (refused["code"], refused["type"]) == (400, "InvalidInput")
