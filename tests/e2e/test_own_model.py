"""A model that answers by its own code: over a real TorchServe, and by the commands that read an archive."""

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import warm_archiver
from archiving import ARCHIVER
from rest import assert_close, assert_refused, post_json
from signing_keys import write_key
from torchserve_process import TorchServe

from .conftest import Store
from .models.decider import FORBIDDEN

NEURON_LSTM = str(ARCHIVER.with_name("neuron-lstm"))
PREDICTIONS = "/predictions/decider"


def eager(store: Store, frames: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scores: torch.Tensor = store.sources["decider"].model(frames[None])[0]
    return scores


def sequences() -> list[torch.Tensor]:
    """Requests of which the second and the fourth take the other branch."""
    rng = torch.Generator().manual_seed(7)
    return [
        torch.randn(length, 3, generator=rng) * scale for length, scale in ((7, 0.5), (1, 90.0), (16, 0.5), (8, 9.0))
    ]


def test_a_bad_request_fails_alone_in_its_batch(server: TorchServe, store: Store) -> None:
    forbidden = torch.full((5, 3), FORBIDDEN)
    bodies = [*sequences(), forbidden, torch.zeros(3, 2), torch.zeros(17, 3), *sequences()]
    with ThreadPoolExecutor(len(bodies)) as clients:
        replies = list(clients.map(lambda one: post_json(server.inference, PREDICTIONS, one.tolist()), bodies))

    for body, reply in zip(bodies, replies, strict=True):
        if body is forbidden:
            assert "forbidden" not in assert_refused(reply, 500)["message"]
        elif tuple(body.shape[1:]) != (3,):
            assert_refused(reply, 400)
        elif len(body) > 16:
            assert_refused(reply, 413)
        else:
            assert reply.status == 200, reply.body
            assert_close(reply.json, eager(store, body))


def test_the_description_says_that_the_model_itself_answers(server: TorchServe) -> None:
    (described,) = server.get("/models/decider?customized=true")
    metadata = described["customizedMetadata"]
    own = (json.loads(metadata) if isinstance(metadata, str) else metadata)["own_model"]
    assert own["name"] == "Decider"
    assert "if frames[0, 0, 0] == FORBIDDEN" in own["reason"]


def test_the_commands_read_the_archive(store: Store, tmp_path: Path) -> None:
    archive = str(store.folder / "decider.mar")
    requests, answers = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    requests.write_text("".join(f"{json.dumps(one.tolist())}\n" for one in sequences()))

    def run(*words: str) -> str:
        done = warm_archiver.run([NEURON_LSTM, *words], tmp_path, os.environ)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("predict", archive, str(requests), "--output", str(answers))
    for line, frames in zip(answers.read_text().splitlines(), sequences(), strict=True):
        assert_close(json.loads(line), eager(store, frames))
    assert "not lowered Decider of model.py answers by its own code" in run("inspect", archive)

    write_key(tmp_path / "key.pem")
    shutil.copy(archive, tmp_path / "signed.mar")
    run("sign", "signed.mar", "--key", "key.pem")
    assert "as signed" in run("verify", "signed.mar", "--trusted-keys", "key.pub")
