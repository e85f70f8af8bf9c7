"""Every form of request and answer over a real TorchServe."""

import io
import json

import numpy as np
import pytest
import torch
from mixed_requests import npy
from rest import JSON, assert_close, post, post_json
from torchserve_process import TorchServe

from .conftest import Store

NPY = {"Content-Type": "application/x-npy"}
LENGTHS = (7, 1, 32)


def eager_scores(store: Store, frames: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        scores: torch.Tensor = store.sources["scorer"].model(frames[None], torch.tensor([len(frames)]))[0]
    return scores


def sequences() -> list[torch.Tensor]:
    return [torch.randn(length, 3) for length in LENGTHS]


def test_a_bare_array_is_one_sequence_and_is_answered_by_a_bare_array(server: TorchServe, store: Store) -> None:
    for frames in sequences():
        reply = post_json(server.inference, "/predictions/scorer", frames.tolist())
        assert (reply.status, reply.content_type) == (200, "application/json")
        assert_close(reply.json, eager_scores(store, frames))


def test_an_object_names_the_inputs_and_several_outputs_come_back_by_name(server: TorchServe, store: Store) -> None:
    ids, frames = torch.randint(50, (9,)), torch.randn(9, 3)
    reply = post_json(server.inference, "/predictions/tagger", {"ids": ids.tolist(), "frames": frames.tolist()})
    with torch.inference_mode():
        tags, label = store.sources["tagger"].model(ids[None], frames[None], torch.tensor([9]))
    assert reply.status == 200, reply.body
    assert list(reply.json) == ["tags", "label"]
    assert_close(reply.json["tags"], tags[0])
    assert_close(reply.json["label"], label[0])


def test_v1_instances_are_answered_by_predictions_in_order(server: TorchServe, store: Store) -> None:
    frames = sequences()
    reply = post_json(server.inference, "/v1/models/scorer:predict", {"instances": [one.tolist() for one in frames]})
    assert reply.status == 200, reply.body
    assert list(reply.json) == ["predictions"]
    for answer, one in zip(reply.json["predictions"], frames, strict=True):
        assert_close(answer, eager_scores(store, one))


def test_npy_comes_in_and_goes_out(server: TorchServe, store: Store) -> None:
    (frames, *_) = sequences()
    body = npy(frames.numpy())
    reply = post(server.inference, "/predictions/scorer", body, {**NPY, "Accept": "application/x-npy"})
    assert (reply.status, reply.content_type) == (200, "application/x-npy")
    answer = np.load(io.BytesIO(reply.body), allow_pickle=False)
    assert answer.dtype == np.float32
    assert_close(answer.tolist(), eager_scores(store, frames))


@pytest.mark.ci
@pytest.mark.parametrize("header", ["describe", "explain"])
def test_a_request_that_looks_like_one_of_torchserves_own_is_answered(
    server: TorchServe, store: Store, header: str
) -> None:
    (frames, *_) = sequences()
    body = json.dumps(frames.tolist()).encode()
    reply = post(server.inference, "/predictions/scorer", body, {**JSON, header: "True"})
    assert reply.status == 200, reply.body
    assert_close(reply.json, eager_scores(store, frames))


def test_describe_tells_what_the_model_takes_and_how_it_was_compiled(server: TorchServe) -> None:
    (described,) = server.get("/models/scorer?customized=true")
    told = json.dumps(described["customizedMetadata"])
    for word in ("frames", "scores", "onnxruntime", "16", "32", "milliseconds"):
        assert word in told
