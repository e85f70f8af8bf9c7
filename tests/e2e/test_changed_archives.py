"""Signed archives on a real server that asks for signatures: what was changed is never ready."""

import json
import os
import py_compile
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from importlib.util import cache_from_source
from pathlib import Path

import pytest
import torch
from archiving import Source, archived, write_source
from rest import assert_close, post, post_json
from served_models import SCORER, scoring
from signing_keys import write_key
from torchserve_process import TorchServe, serving

from torchserve_neuron_lstm.archiver_ext.archive.file_list import write_list
from torchserve_neuron_lstm.archiver_ext.cli import main

BLOCK = scoring("{batch: [1, 4], length: [4, 8]}", "backend: eager")
PACKAGE = "torchserve_neuron_lstm"


class Host:
    """A running server, its model store with a signed folder, and the file that added code would write."""

    def __init__(self, server: TorchServe, store: Path, source: Source) -> None:
        self.server, self.store, self.source = server, store, source
        self.marker = store.parent / "marker"
        self.code = f"open({str(self.marker)!r}, 'a').write(__name__)\n"

    def refusal(self, name: str) -> str:
        """Register a folder of the store; returns the line of the log that says why it does not load.

        TorchServe starts a worker of it, waits until that is ready or has failed, and forgets a model that failed.
        """
        path = f"models?url={name}&model_name={name}&initial_workers=1"
        assert post(self.server.management, f"/{path}", b"", seconds=120).status == 500
        found = [line for line in self.server.log_lines() if f"Failed to load model {name}, exception " in line]
        assert found, self.server.log_lines()[-40:]
        return found[0].partition("exception ")[2]

    def assert_answers(self) -> None:
        frames = torch.randn(3, 3)
        reply = post_json(self.server.inference, "/predictions/scorer", frames.tolist())
        with torch.no_grad():
            assert_close(reply.json, self.source.model(frames[None], torch.tensor([3]))[0])


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A server that trusts one key, with an archive signed by it, as a .mar and as a folder."""
    place = tmp_path_factory.mktemp("changed")
    source = write_source(place / "source", SCORER, BLOCK)
    store, key, trusted = place / "store", str(place / "key.pem"), str(place / "key.pub")
    store.mkdir()
    write_key(place / "key.pem")
    archived(source, "scorer", store)
    shutil.unpack_archive(store / "scorer.mar", store / "folder", "zip")
    for name in ("scorer.mar", "folder"):
        assert main(["sign", str(store / name), "--key", key]) == 0
        assert main(["verify", "--trusted-keys", trusted, str(store / name)]) == 0
    environment = {"NEURON_LSTM_TRUSTED_KEYS": trusted, "PYTHONDONTWRITEBYTECODE": ""}
    models = {"scorer": "scorer.mar", "untouched": "folder"}
    with serving(store, models, settings={"enable_model_api": "true"}, environment=environment) as server:
        yield Host(server, store, source)


@pytest.mark.ci
def test_an_untouched_archive_comes_back_after_its_worker_is_killed(host: Host) -> None:
    host.assert_answers()
    caches = list((host.store / "folder").rglob("*.pyc"))
    assert [cache.name.partition(".")[0] for cache in caches] == ["neuron_lstm"]
    for model in ("scorer", "untouched"):
        (killed,) = host.server.worker_pids(model)
        os.kill(killed, signal.SIGKILL)
        end = time.monotonic() + 120
        while not [
            worker
            for worker in host.server.workers(model)
            if worker["status"] == "READY" and worker["pid"] not in (killed, -1)
        ]:
            assert time.monotonic() < end, host.server.log_lines()[-40:]
            time.sleep(0.2)
    host.assert_answers()


def change_weights(folder: Path, code: str) -> str:
    content = bytearray((folder / "weights.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "weights.pt").write_bytes(content)
    return "weights.pt was changed"


def change_code(folder: Path, code: str) -> str:
    file = folder / PACKAGE / "handlers" / "service.py"
    file.write_text(file.read_text() + code)
    return f"{PACKAGE}/handlers/service.py was changed"


def add_module(folder: Path, code: str) -> str:
    (folder / "orjson.py").write_text(code)
    return "orjson.py is not in SHA256SUMS"


def plant_bytecode(folder: Path, code: str) -> str:
    """Add bytecode that Python would run in place of a listed module."""
    (folder / "planted.py").write_text(code)
    cache = cache_from_source(str(folder / PACKAGE / "handlers" / "service.py"))
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(folder / "planted.py"), cache, doraise=True, invalidation_mode=mode)
    (folder / "planted.py").unlink()
    return f"{Path(cache).relative_to(folder)} is not in SHA256SUMS"


def link(folder: Path, code: str) -> str:
    outside = folder.parent.parent / "linked.json"
    (folder / "variants.json").rename(outside)
    (folder / "variants.json").symlink_to(outside)
    return "variants.json is a link"


def rewrite_list(folder: Path, code: str) -> str:
    change_code(folder, code)
    write_list(folder)
    return "the archive is not signed"


@pytest.mark.ci
@pytest.mark.parametrize("change", [change_weights, change_code, add_module, plant_bytecode, link, rewrite_list])
def test_a_changed_archive_is_never_ready(host: Host, change: Callable[[Path, str], str]) -> None:
    name = change.__name__
    told = change(Path(shutil.copytree(host.store / "folder", host.store / name)), host.code)

    assert told in host.refusal(name)
    assert not host.marker.exists()


@pytest.mark.ci
def test_a_module_that_torchserve_imports_first_does_not_make_the_archive_ready(host: Host) -> None:
    """It may run before any handler, as SECURITY.md says."""
    folder = Path(shutil.copytree(host.store / "folder", host.store / "early"))
    shutil.copytree(Path(json.__path__[0]), folder / "json", ignore=shutil.ignore_patterns("__pycache__"))

    assert "json/__init__.py is not in SHA256SUMS" in host.refusal("early")
