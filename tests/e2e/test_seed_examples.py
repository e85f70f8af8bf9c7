"""The six examples of the torch-neuron LSTM guide: four are served, two refused in the guide's words."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from archiving import archive, write_source
from rest import assert_close, post_json
from torch import nn
from torchserve_process import TorchServe, serving

from .conftest import PACKED, SEED_MODELS, Store, packaged

FEATURES = 3
EVERY_LENGTH = range(1, 9)
LENGTHLESS = """
inputs: {inputs: {dtype: float32, shape: [time, batch, 3]}}
outputs: [output, ht, ct]
buckets: {batch: [4], length: [8]}
"""
FINAL_STATE = PACKED.replace("padded_result, ", "")
FURTHER_EXAMPLES = {
    "fixed_length": (SEED_MODELS / "fixed_length" / "model.py", f"{LENGTHLESS}backend: onnxruntime"),
    "packed_sorted": (SEED_MODELS / "packed_sorted" / "model.py", f"{PACKED}backend: eager"),
    "final_state": (SEED_MODELS / "final_state" / "model.py", f"{FINAL_STATE}backend: openvino"),
}


@pytest.fixture(scope="session")
def further(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TorchServe, Store]]:
    """A TorchServe with the examples that the other end-to-end tests do not ask."""
    store = packaged(FURTHER_EXAMPLES, tmp_path_factory)
    with serving(store.folder, {name: f"{name}.mar" for name in FURTHER_EXAMPLES}) as running:
        yield running, store


def alone(model: nn.Module, frames: torch.Tensor, *, with_lengths: bool) -> list[torch.Tensor]:
    arguments = [frames[:, None, :]] + ([torch.tensor([len(frames)])] if with_lengths else [])
    with torch.inference_mode():
        answer = model(*arguments)
    flat = [answer[0], *answer[1]] if isinstance(answer[1], tuple) else list(answer)
    return [tensor[:, 0] for tensor in flat]


@pytest.mark.parametrize("length", EVERY_LENGTH)
def test_an_example_that_sorts_answers_every_length_as_eager_does(
    server: TorchServe, store: Store, length: int
) -> None:
    check_packed(server, store, "packed_unsorted", length)


@pytest.mark.ci
@pytest.mark.parametrize("name", ["packed_sorted", "final_state"])
@pytest.mark.parametrize("length", EVERY_LENGTH)
def test_a_packed_example_answers_every_length_as_eager_does(
    further: tuple[TorchServe, Store], name: str, length: int
) -> None:
    check_packed(*further, name, length)


def check_packed(server: TorchServe, store: Store, name: str, length: int) -> None:
    frames = torch.randn(length, FEATURES)
    reply = post_json(server.inference, f"/predictions/{name}", frames.tolist())
    assert reply.status == 200, reply.body
    names = ["padded_result", "ht", "ct"][-len(reply.json) :]
    assert list(reply.json) == names
    for answer, expected in zip(
        reply.json.values(), alone(store.sources[name].model, frames, with_lengths=True), strict=True
    ):
        assert_close(answer, expected)


@pytest.mark.ci
@pytest.mark.parametrize("length", EVERY_LENGTH)
def test_the_fixed_length_example_answers_every_length_as_eager_does(
    further: tuple[TorchServe, Store], length: int
) -> None:
    server, store = further
    frames = torch.randn(length, FEATURES)
    reply = post_json(server.inference, "/predictions/fixed_length", {"inputs": frames.tolist()})
    assert reply.status == 200, reply.body
    expected = alone(store.sources["fixed_length"].model, frames, with_lengths=False)
    for answer, tensor in zip((reply.json[name] for name in ("output", "ht", "ct")), expected, strict=True):
        assert_close(answer, tensor)


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "operator"), [("packed_returned", "prim::Return"), ("packed_used", "aten::max")])
def test_an_unsupported_example_is_refused_in_the_words_of_the_guide(tmp_path: Path, name: str, operator: str) -> None:
    store = tmp_path / "store"
    store.mkdir()
    source = write_source(
        tmp_path / name, SEED_MODELS / name / "model.py", PACKED.replace("outputs:", "lowering: required\n# outputs:")
    )
    done = archive(source, name, store)
    assert done.returncode != 0
    said = " ".join(done.stdout.split())
    assert (
        'Operator "aten::lstm" consuming a PackedSequence input can only be supported when its corresponding '
        'PackedSequence output is unused or unpacked using "aten::_pad_packed_input". '
        f'Found usage by "{operator}"'
    ) in said
    assert "pad_packed_sequence()" in said
    assert list(store.iterdir()) == []
