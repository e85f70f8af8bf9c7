"""Sessions while a Ray cluster and its Redis cluster lose processes.

Three nodes, each a raylet of this machine, have replicas of one archive, whose sessions are on a Redis cluster of three
primaries with one replica each. Replicas, nodes and a primary are killed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import psutil
import torch
from redis_cluster import SLOTS, LocalCluster, running_cluster
from redis_server import server_programs
from torchserve_process import free_ports

from .bad_requests import STREAM
from .checks import Law, Tally, answer_laws
from .faults import until_enough
from .hosts import make_archive
from .model import Tagger
from .traffic import draw_traffic, send

REPLICAS, NODES, PRIMARIES = "replicas killed", "nodes removed", "Redis primaries killed"
_COUNT = 3
"""Nodes, and replicas of the application."""
_NODE = {"num_cpus": 2, "object_store_memory": 100 * 1024 * 1024}
_FAILOVER_SECONDS = 5.0
"""A primary that does not answer for so long is replaced: longer than a busy machine holds it up."""
_MOST_SECONDS = 300.0
_Found = TypeVar("_Found")


def run_cluster(model: Tagger, options: argparse.Namespace, seconds: float) -> tuple[list[Law], Tally]:
    """Package, serve and disturb."""
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    tally, needed = Tally(), {REPLICAS: options.kills, NODES: 2, PRIMARIES: 1}
    # a node that ended without warning is noticed late, and a replica elsewhere starts slowly on a busy machine
    limits = {"patience": _MOST_SECONDS, "answer_seconds": 30.0, "hang_ups": options.hang_ups}
    traffic = draw_traffic(model, options.chunks, random.Random(0), faults=True, **limits)
    with ExitStack() as stack:
        folder = tempfile.TemporaryDirectory(prefix="rs-", ignore_cleanup_errors=True)
        work = Path(stack.enter_context(folder))
        stack.enter_context(redirect_stdout(sys.stderr))  # Ray tells there what died
        for name in ("redis", "ray", "sessions"):
            (work / name).mkdir()
        program = server_programs()["redis-server"]
        clustered = running_cluster(program, work / "redis", replicas=1, node_timeout=_FAILOVER_SECONDS)
        redis, nodes = stack.enter_context(clustered), stack.enter_context(running_nodes(work / "ray"))
        settings = f"{{url: '{redis.url}', cluster: true, replicas: 1, timeout_seconds: 3.0}}"
        streaming = f"{{store: redis, redis: {settings}}}"
        nodes.deploy(make_archive(model, work / "sessions", STREAM, 1, options.backend, streaming))
        goes_on, began = until_enough(tally, needed, seconds), time.monotonic()
        faults = make_faults(nodes, redis, tally, needed, lambda: (time.monotonic() - began) / seconds)
        asyncio.run(send(traffic, [nodes.http], options.clients or 200, tally, goes_on, faults))
    return [*answer_laws(tally, (), needed)], tally


class ReplicaProcess(NamedTuple):
    """A replica that takes requests: Serve's id, which no later one gets, its process, and Ray's id of its node."""

    id: str
    pid: int
    node: str


def ready_replicas(details: Mapping[str, Any], gone: Collection[str]) -> list[ReplicaProcess]:
    """List the replicas that take requests, but for those with the ids `gone`: Serve notices it later."""
    deployments = [deployment for app in details["applications"].values() for deployment in app["deployments"].values()]
    return [
        ReplicaProcess(replica["replica_id"], replica["pid"], replica["node_id"])
        for deployment in deployments
        for replica in deployment["replicas"]
        if replica["state"] == "RUNNING" and replica["replica_id"] not in gone
    ]


def replica_to_kill(ready: Sequence[ReplicaProcess], chance: random.Random) -> ReplicaProcess | None:
    """Choose one of at least two; None: fewer are ready, and one must go on."""
    return chance.choice(ready) if len(ready) >= 2 else None


def node_to_remove(ready: Sequence[ReplicaProcess], chance: random.Random) -> str | None:
    """Choose a node with a replica; None: no other node has one, and one must go on."""
    names = sorted({replica.node for replica in ready})
    return chance.choice(names) if len(names) >= 2 else None


def due(made: Counter[str], wanted: Mapping[str, int], share: float) -> str:
    """Return the next fault after a share of the time: nodes and primaries evenly, replicas between them."""
    for name in (NODES, PRIMARIES):
        if made[name] < wanted[name] and share >= (made[name] + 0.5) / wanted[name]:
            return name
    return REPLICAS


async def make_faults(
    nodes: RayNodes, redis: LocalCluster, tally: Tally, wanted: Mapping[str, int], share: Callable[[], float]
) -> None:
    """Make faults until it is cancelled, with clients at work; raises `TimeoutError` if that is not possible."""
    chance = random.Random(0)

    async def kill_replica() -> None:
        choose = partial(replica_to_kill, chance=chance)
        while not nodes.kill(await _awaited(lambda: choose(nodes.ready()), "two replicas that are ready")):
            pass

    async def remove_node() -> None:
        node = await _awaited(lambda: node_to_remove(nodes.ready(), chance), "replicas on two nodes")
        await asyncio.to_thread(nodes.remove, node)
        await asyncio.to_thread(nodes.add)

    async def kill_primary() -> None:
        """Kill one, and start it again once its replica has its slots: a shard without one takes no writes."""
        slot = chance.randrange(SLOTS)
        killed = redis.owner(slot)
        killed.kill()
        await asyncio.to_thread(redis.wait_for_failover, slot, killed)
        await asyncio.to_thread(killed.start)
        await asyncio.to_thread(redis.wait_until_complete)

    makers = {REPLICAS: kill_replica, NODES: remove_node, PRIMARIES: kill_primary}
    while True:
        right = tally.good_right + 50
        await _awaited(lambda right=right: tally.good_right >= right or None, "answers")  # type: ignore[misc]
        name = due(tally.faults, wanted, share())
        await makers[name]()
        tally.faults[name] += 1
        await asyncio.sleep(5.0)


async def _awaited(look: Callable[[], _Found | None], what: str) -> _Found:
    deadline = time.monotonic() + _MOST_SECONDS
    while (result := await asyncio.to_thread(look)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"expected {what} within {_MOST_SECONDS:.0f} s, and there were none")
        await asyncio.sleep(0.5)
    return result


class RayNodes:
    """The nodes of a running cluster. The first one has the controller, the HTTP proxy and no replicas."""

    def __init__(self, cluster: Any, http: int) -> None:
        self._cluster = cluster
        self._gone: set[str] = set()
        self.http = http
        """The HTTP port of the first node."""

    def deploy(self, archive: Path) -> None:
        """Start the application of an archive, and wait until all its replicas are ready."""
        from ray import serve

        from torchserve_neuron_lstm.hosts.ray import app

        serve.run(app({"archive": str(archive), "threads": 1, "replicas": _COUNT}), route_prefix="/")

    def ready(self) -> list[ReplicaProcess]:
        """Return the replicas that take requests now."""
        from ray.serve.context import _get_global_client

        return ready_replicas(_get_global_client().get_serve_details(), self._gone)

    def kill(self, replica: ReplicaProcess) -> bool:
        """Kill the process of a replica, as in a crash. Returns whether it was still running."""
        self._gone.add(replica.id)
        with suppress(ProcessLookupError):
            os.kill(replica.pid, signal.SIGKILL)
            return True
        return False

    def remove(self, node: str) -> None:
        """Kill a node's raylet, and with it its replicas."""
        self._gone.update(replica.id for replica in self.ready() if replica.node == node)
        (worker,) = [worker for worker in self._cluster.worker_nodes if worker.node_id == node]
        self._cluster.remove_node(worker, allow_graceful=False)

    def add(self) -> None:
        """Start another node, and wait until the cluster has it."""
        self._cluster.add_node(**_NODE)


@contextmanager
def running_nodes(directory: Path) -> Iterator[RayNodes]:
    """Start a head without CPUs and three nodes. The directory's path must be short: names of sockets contain it."""
    # Ray reads them when it is imported; its own folder has the address to which any `ray.init()` here connects
    os.environ.update(
        RAY_TMPDIR=str(directory),
        RAY_USAGE_STATS_ENABLED="0",
        RAY_memory_monitor_refresh_ms="0",
        RAY_SERVE_LOG_TO_STDERR="0",
        RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S="60",
    )
    import ray
    from ray import serve
    from ray.cluster_utils import Cluster

    (http,) = free_ports(1)
    cluster = Cluster(initialize_head=True, head_node_args={**_NODE, "num_cpus": 0, "include_dashboard": False})
    # Ray's hooks can be set by the main thread alone, and a node is added by another: such nodes end with their head
    cluster._shutdown_at_exit = False  # noqa: SLF001 - an argument of the cluster, for the head and the others alike
    nodes, replicas = RayNodes(cluster, http), list[psutil.Process]()
    try:
        for _ in range(_COUNT):
            nodes.add()
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": http})
        yield nodes
        replicas = [psutil.Process(replica.pid) for replica in nodes.ready()]
        serve.shutdown()
    finally:
        ray.shutdown()
        cluster.shutdown()
        _, running = psutil.wait_procs(replicas, timeout=30)  # they end by themselves when their raylet has
        for process in running:
            process.kill()
