"""A TorchServe with a streaming model for each session store, and for another engine."""

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from archiving import Source, archived, write_source
from redis_cluster import LocalCluster, running_cluster
from redis_server import RedisServer, running, server_programs
from rest import JSON, Reply, post
from served_models import NATIVE, SCORER, scoring
from torchserve_process import TorchServe, serving

KEPT = ("--appendonly", "yes", "--appendfsync", "always")
"""With a weaker setting, a killed server may lose a write that it has confirmed."""


@dataclass(frozen=True)
class Streaming:
    """A server with a model of each store."""

    server: TorchServe
    source: Source
    sessions: Path
    """The folder of the store on disk."""
    redis: RedisServer
    cluster: LocalCluster

    def send(self, model: str, body: object = None, **headers: object) -> Reply:
        """Send a chunk as JSON, or no body; headers by their last word: `id`, `start`, `end`, `step`, `token`."""
        named = {f"ts_request_sequence_{word}": str(value) for word, value in headers.items()}
        content = b"" if body is None else json.dumps(body).encode()
        return post(self.server.inference, f"/predictions/{model}", content, {**JSON, **named})

    def eager(self, frames: torch.Tensor) -> torch.Tensor:
        """The answer to the whole sequence [T, 3] at once: [T, 4]."""
        with torch.inference_mode():
            scores: torch.Tensor = self.source.model(frames[None], torch.tensor([len(frames)]))[0]
        return scores


@contextmanager
def streaming_server(folders: pytest.TempPathFactory) -> Iterator[Streaming]:
    folder, work = folders.mktemp("store"), folders.mktemp("sources")
    (program, *_) = server_programs().values()
    redis = RedisServer(program, folders.mktemp("redis"), *KEPT)
    with running_cluster(program, folders.mktemp("cluster"), *KEPT) as cluster:
        sources = _packaged(_stores(redis.url, cluster.url), work, folder)
        sessions = work / "sessions"
        with (
            running(redis),
            serving(
                folder,
                {name: f"{name}.mar" for name in sources},
                environment={"NEURON_LSTM_SESSIONS": str(sessions), "OMP_WAIT_POLICY": "passive"},
            ) as server,
        ):
            yield Streaming(server, sources["disk"], sessions, redis, cluster)


def _stores(redis_url: str, cluster_url: str) -> dict[str, str]:
    return {
        "disk": "{}",
        "native": "{}",
        "few": "{max_sessions: 2}",
        "client": "{store: client}",
        "redis": f"{{store: redis, redis: {{url: '{redis_url}'}}}}",
        "cluster": f"{{store: redis, redis: {{url: '{cluster_url}', cluster: true}}}}",
    }


def _packaged(stores: Mapping[str, str], work: Path, folder: Path) -> dict[str, Source]:
    sources = {}
    for name, streaming in stores.items():
        engine = NATIVE if name == "native" else "onnxruntime"
        block = scoring("{batch: [1, 8], length: [16]}", f"backend: {engine}", f"streaming: {streaming}")
        sources[name] = write_source(work / name, SCORER, block)
    config = sources["disk"].folder / "model-config.yaml"
    config.write_text(config.read_text().replace("Workers: 1", "Workers: 2"))
    with ThreadPoolExecutor(2) as packagers:
        list(packagers.map(lambda name: archived(sources[name], name, folder), sources))
    return sources
