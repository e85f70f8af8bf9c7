"""The Open Inference Protocol over a real TorchServe, by Triton's own client with its defaults."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
import tritonclient.http as triton
from archiving import Source
from mixed_requests import frames_of
from torchserve_process import TorchServe
from tritonclient.utils import InferenceServerException

from .conftest import Store


@pytest.fixture(scope="module")
def client(server: TorchServe) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(f"127.0.0.1:{server.inference}") as opened:
        yield opened


def tensor(name: str, array: np.ndarray, *, binary: bool = True) -> triton.InferInput:
    kinds = {"float32": "FP32", "int64": "INT64", "int32": "INT32", "float64": "FP64"}
    made = triton.InferInput(name, list(array.shape), kinds[str(array.dtype)])
    return made.set_data_from_numpy(array, binary_data=binary)


@torch.inference_mode()
def eager(source: Source, frames: np.ndarray) -> np.ndarray:
    scores: torch.Tensor = source.model(torch.from_numpy(frames)[None], torch.tensor([len(frames)]))[0]
    return scores.numpy()


def test_the_server_is_live_and_ready_and_tells_its_name(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.get_server_metadata()["name"] == "Torchserve"


@pytest.mark.parametrize("binary_in", [True, False], ids=["bytes in", "JSON in"])
@pytest.mark.parametrize("binary_out", [None, True, False], ids=["default out", "bytes out", "JSON out"])
def test_tensors_go_in_and_out_as_bytes_and_as_json_numbers(
    client: triton.InferenceServerClient, store: Store, binary_in: bool, binary_out: bool | None
) -> None:
    frames = frames_of(7)
    outputs = None if binary_out is None else [triton.InferRequestedOutput("scores", binary_data=binary_out)]
    result = client.infer("scorer", [tensor("frames", frames[None], binary=binary_in)], outputs=outputs)

    np.testing.assert_allclose(result.as_numpy("scores"), eager(store.sources["scorer"], frames)[None], atol=1e-5)
    entry = result.get_output("scores")
    assert ("binary_data_size" in entry.get("parameters", {})) == (binary_out is not False)


def test_a_batch_of_one_length_is_one_tensor(client: triton.InferenceServerClient, store: Store) -> None:
    batch = np.stack([frames_of(9, seed) for seed in range(5)])
    found = client.infer("scorer", [tensor("frames", batch)], request_id="batch 1")

    assert found.get_response()["id"] == "batch 1"
    expected = np.stack([eager(store.sources["scorer"], one) for one in batch])
    np.testing.assert_allclose(found.as_numpy("scores"), expected, atol=1e-5)


@torch.inference_mode()
def test_several_inputs_of_several_dtypes_and_one_chosen_output(
    client: triton.InferenceServerClient, store: Store
) -> None:
    ids, frames = np.arange(9)[None], frames_of(9)[None]
    _, label = store.sources["tagger"].model(torch.from_numpy(ids), torch.from_numpy(frames), torch.tensor([9]))
    chosen = [triton.InferRequestedOutput("label")]
    for dtype in (np.int64, np.int32):
        given = [tensor("frames", frames.astype(np.float64)), tensor("ids", ids.astype(dtype))]
        result = client.infer("tagger", given, outputs=chosen)
        np.testing.assert_allclose(result.as_numpy("label"), label.numpy(), atol=1e-5)
        assert [entry["name"] for entry in result.get_response()["outputs"]] == ["label"]
    whole = client.infer("tagger", [tensor("ids", ids), tensor("frames", frames)])
    assert [entry["name"] for entry in whole.get_response()["outputs"]] == ["tags", "label"]


@pytest.mark.parametrize("session", [7, 2**64 - 1, "talk-of-Ada"])
def test_sequence_flags_are_those_of_a_session(
    client: triton.InferenceServerClient, store: Store, session: int | str
) -> None:
    frames, found = frames_of(21), []
    for start, end in ((0, 4), (4, 5), (5, 21)):
        chunk = [tensor("frames", frames[None, start:end])]
        flags = {"sequence_start": start == 0, "sequence_end": end == 21}
        found.append(client.infer("stream", chunk, sequence_id=session, **flags).as_numpy("scores")[0])

    np.testing.assert_allclose(np.concatenate(found), eager(store.sources["stream"], frames), atol=1e-5)
    with pytest.raises(InferenceServerException) as ended:
        client.infer("stream", chunk, sequence_id=session)
    assert ended.value.status() == "410"


def test_a_replayed_chunk_comes_back_as_the_same_bytes(client: triton.InferenceServerClient) -> None:
    chunk = [tensor("frames", frames_of(5)[None])]
    first, again = [
        client.infer("stream", chunk, sequence_id=99, sequence_start=True, parameters={"sequence_step": 0})
        for _ in range(2)
    ]

    np.testing.assert_array_equal(first.as_numpy("scores"), again.as_numpy("scores"))


def test_what_cannot_be_answered_is_an_exception_of_the_client(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException) as refused:
        client.infer("scorer", [tensor("frames", frames_of(4)[None])], timeout=1)

    assert refused.value.status() == "504"
    assert "deadline" in refused.value.message()
