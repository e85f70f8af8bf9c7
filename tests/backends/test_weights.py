import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from torchserve_neuron_lstm.backends.safetensors_file import WeightsError
from torchserve_neuron_lstm.backends.weights import read_weights

STATE = {
    "lstm.weight_ih_l0": torch.arange(12, dtype=torch.float32).view(4, 3),
    "half": torch.tensor([0.5, 1.5], dtype=torch.bfloat16),
    "flag": torch.tensor([True, False, True]),
    "count": torch.tensor(7),
    "empty": torch.empty(0, 3),
}


@pytest.mark.parametrize("name", ["weights.pt", "weights.pth", "legacy.pt", "weights.safetensors", "W.SAFETENSORS"])
def test_reads_every_kind_of_file_alike(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if path.suffix.lower() == ".safetensors":
        save_file(STATE, path, metadata={"format": "pt"})
    else:
        torch.save(STATE, path, _use_new_zipfile_serialization="legacy" not in name)
    read = read_weights(path)

    assert set(STATE) == set(read)
    for key, tensor in STATE.items():
        assert tensor.dtype == read[key].dtype
        assert torch.equal(tensor, read[key])


def is_mapped(address: int, path: Path) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(number, 16) for number in line.split(maxsplit=1)[0].split("-"))
        if begin <= address < end:
            return line.endswith(str(path))
    return False


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_tensors_are_pages_of_the_file(tmp_path: Path, suffix: str) -> None:
    """The page cache holds them once for all workers."""
    path, state = tmp_path / f"weights{suffix}", {"w": torch.arange(1_000_000, dtype=torch.float32)}
    if suffix == ".pt":
        torch.save(state, path)
    else:
        save_file(state, path)

    tensor = read_weights(path)["w"]

    assert is_mapped(tensor.data_ptr(), path)
    assert torch.equal(tensor, state["w"])


def test_non_contiguous_tensors_come_back_contiguous(tmp_path: Path) -> None:
    """Engines read weights by address, so a transposed tensor is copied once, here."""
    torch.save({"w": torch.arange(6.0).view(2, 3).t()}, tmp_path / "w.pt")

    assert read_weights(tmp_path / "w.pt")["w"].is_contiguous()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (torch.nn.Linear(2, 2), "state_dict"),
        ([torch.ones(2)], "holds a list"),
        ({"model": {"w": torch.ones(2)}, "epoch": 3}, "'model' (dict), 'epoch' (int) are not a named tensor"),
        ({3: torch.ones(2)}, "3 (Tensor) is not a named tensor"),
    ],
)
def test_other_contents_are_refused_with_the_way_out(tmp_path: Path, content: object, says: str) -> None:
    torch.save(content, tmp_path / "w.pt")

    with pytest.raises(WeightsError) as refusal:
        read_weights(tmp_path / "w.pt")
    assert says in str(refusal.value)
    assert "w.pt" in str(refusal.value)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("content", [b"", b"\0" * 4, b"not weights at all", b"\xff" * 64, b"PK\x03\x04 torn"])
def test_damaged_files_are_refused(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"w{suffix}"
    path.write_bytes(content)

    with pytest.raises(WeightsError, match=r"w\."):
        read_weights(path)


def test_missing_and_unknown_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"x")

    with pytest.raises(WeightsError, match="no weights file"):
        read_weights(tmp_path / "w.pt")
    with pytest.raises(WeightsError, match=r"\.pt, \.pth or \.safetensors"):
        read_weights(tmp_path / "w.bin")


def _safetensors(path: Path, header: Any, data: bytes) -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


VALID = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "header",
    [
        {"w": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}},  # more than its bytes
        {"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}},  # beyond the end
        {"w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}},  # a hole
        {"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}},  # bytes without a tensor
        {
            "w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
            "v": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        },  # overlapping
        {"w": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}},
        {"w": {"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]}},
        {"w": {"dtype": "X9", "shape": [2], "data_offsets": [0, 8]}},
        {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0]}},
        {"w": {"dtype": "F32", "shape": [2]}},
        *(
            {"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}, "v": VALID}
            for shape in ([2**62, 2**62, 0], [0, 2**62, 2**62], [2**63, 0], [2**62] * 60_000 + [0])
        ),  # too large, though empty
        {"w": {"dtype": "F32", "shape": [2] + [1] * 2000, "data_offsets": [0, 8]}},
        {"w": {"dtype": "F" * 100_000, "shape": [2], "data_offsets": [0, 8]}},
        {"w": 3},
        [1, 2],
        7,
    ],
)
def test_safetensors_with_a_false_table_is_refused(tmp_path: Path, header: Any) -> None:
    with pytest.raises(WeightsError, match="damaged") as refused:
        read_weights(_safetensors(tmp_path / "w.safetensors", header, b"\0" * 8))

    assert len(str(refused.value)) < 400
    assert "\n" not in str(refused.value)


def test_safetensors_with_an_odd_header_is_read(tmp_path: Path) -> None:
    """Tensors at unaligned addresses are copied, because engines read weights by address."""
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    for name in ("w", "ww", "www", "wwww"):
        path = _safetensors(tmp_path / "w.safetensors", {name: entry}, torch.tensor([1.0, 2.0]).numpy().tobytes())

        tensor = read_weights(path)[name]
        assert tensor.tolist() == [1.0, 2.0]
        assert tensor.data_ptr() % 4 == 0


@given(noise=st.binary(max_size=200), size=st.integers(0, 250))
def test_no_safetensors_bytes_raise_anything_else(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, size: int
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "w.safetensors"
    path.write_bytes(size.to_bytes(8, "little") + noise)
    with contextlib.suppress(WeightsError):
        assert isinstance(read_weights(path), dict)
