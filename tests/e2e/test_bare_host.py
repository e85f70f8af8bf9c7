"""An archive is served on a host without this project, and names the packages that it needs."""

import json
from pathlib import Path

import pytest
import python_path
import torch
from archiving import archived
from bare_host import can_import, make_bare_host
from rest import JSON, post
from torchserve_process import DidNotStart, TorchServe, serving

from .conftest import Store

pytestmark = pytest.mark.ci

SERVED = ("tagger", "scorer", "packed_unsorted")


def bodies(name: str) -> list[bytes]:
    torch.manual_seed(3)
    lengths = (1, 4, 8) if name == "packed_unsorted" else (1, 16, 17, 32)
    made = []
    for length in lengths:
        frames = torch.randn(length, 3).tolist()
        made.append({"ids": torch.randint(50, (length,)).tolist(), "frames": frames} if name == "tagger" else frames)
    return [json.dumps(body).encode() for body in made]


def answers(running: TorchServe, name: str) -> list[bytes]:
    replies = [post(running.inference, f"/predictions/{name}", body, JSON) for body in bodies(name)]
    assert [reply.status for reply in replies] == [200] * len(replies)
    return [reply.body for reply in replies]


def test_a_host_without_the_plug_in_gives_the_same_answers_to_the_last_bit(
    server: TorchServe, store: Store, tmp_path: Path
) -> None:
    python = make_bare_host(tmp_path / "host")
    with serving(
        store.folder, {name: f"{name}.mar" for name in SERVED}, python=python, environment=python_path.NONE
    ) as bare:
        for name in SERVED:
            assert answers(bare, name) == answers(server, name)


def test_a_host_without_the_engine_refuses_to_load_and_names_the_package(store: Store, tmp_path: Path) -> None:
    python = make_bare_host(tmp_path / "host", without=("onnxruntime",))
    assert not can_import(python, "onnxruntime")
    with (
        pytest.raises(DidNotStart, match=r"Failed to load model scorer, exception .*onnxruntime"),
        serving(store.folder, {"scorer": "scorer.mar"}, python=python, environment=python_path.NONE),
    ):
        pass


@pytest.fixture(scope="module")
def unpacked(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    archived(store.sources["scorer"], "scorer", folder, ["--archive-format", "no-archive"])
    return folder


def copy_of(unpacked: Path, folder: Path) -> Path:
    target = folder / "scorer"
    for file in (unpacked / "scorer").rglob("*"):
        if file.is_file():
            copied = target / file.relative_to(unpacked / "scorer")
            copied.parent.mkdir(parents=True, exist_ok=True)
            copied.write_bytes(file.read_bytes())
    return target


def test_a_damaged_archive_does_not_load_and_the_file_is_named(unpacked: Path, tmp_path: Path) -> None:
    """A changed file stops the load; TorchServe reports only a RuntimeError."""
    weights = copy_of(unpacked, tmp_path) / "weights.pt"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    with (
        pytest.raises(DidNotStart, match=r"Failed to load model scorer, exception .*weights\.pt"),
        serving(tmp_path, {"scorer": "scorer"}),
    ):
        pass
