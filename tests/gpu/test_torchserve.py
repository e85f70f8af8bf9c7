"""An archive of the engine `cuda` behind TorchServe, which gives its worker a GPU.

Without a GPU or TorchServe, each test is skipped as not run.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import torch

pytest.importorskip("pydantic", reason="not run: packaging needs pydantic")
pytest.importorskip("ts", reason="not run: there is no TorchServe")

from archiving import Source, archived, write_source
from rest import assert_close, assert_refused, post_json
from served_models import TAGGER, tagging
from torchserve_process import TorchServe, serving

from torchserve_neuron_lstm.backends.cuda.torch_device import gpu_missing

_MISSING = gpu_missing()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(_MISSING is not None, reason=f"not run: {_MISSING}"),
]

BLOCK = tagging("{batch: [1, 8, 32], length: [16, 32]}", "backend: cuda")
PATH = "/predictions/tagger"


@dataclass(frozen=True)
class Served:
    server: TorchServe
    source: Source


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    place = tmp_path_factory.mktemp("gpu")
    source = write_source(place / "user", TAGGER, BLOCK)
    archived(source, "tagger", place)
    with serving(place, {"tagger": "tagger.mar"}) as server:
        yield Served(server, source)


def request(length: int) -> dict[str, torch.Tensor]:
    return {"ids": torch.randint(50, (length,)), "frames": torch.randn(length, 3)}


def test_concurrent_requests_get_the_answers_of_eager_mode(served: Served) -> None:
    torch.manual_seed(0)
    sent = [request(1 + number % 32) for number in range(200)]

    def send(inputs: dict[str, torch.Tensor]) -> dict[str, object]:
        reply = post_json(served.server.inference, PATH, {name: value.tolist() for name, value in inputs.items()})
        assert reply.status == 200, reply.body
        answer: dict[str, object] = reply.json
        return answer

    with ThreadPoolExecutor(16) as clients:
        answers = list(clients.map(send, sent))
    for inputs, answer in zip(sent, answers, strict=True):
        with torch.inference_mode():
            tags, label = served.source.model(*(v[None] for v in inputs.values()), torch.tensor([len(inputs["ids"])]))
        assert_close(answer["tags"], tags[0])
        assert_close(answer["label"], label[0])


def test_the_worker_is_on_the_gpu_that_torchserve_gave_it(served: Served) -> None:
    (worker,) = served.server.workers("tagger")

    assert worker["gpu"] is True, json.dumps(worker)
    assert "N/A" not in worker["gpuUsage"], worker["gpuUsage"]


def test_a_bad_request_is_refused_and_the_next_one_is_answered(served: Served) -> None:
    """An index beyond the table would stop every later launch of the process, if it reached the GPU."""
    bad = post_json(served.server.inference, PATH, {"ids": [50], "frames": [[0.0, 0.0, 0.0]]})
    good = post_json(served.server.inference, PATH, {"ids": [49], "frames": [[0.0, 0.0, 0.0]]})

    assert_refused(bad, 400, 422)
    assert good.status == 200, good.body
