"""A Ray cluster of several nodes on this machine, each with a raylet."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torchserve_process import free_ports

from .replicas import ReplicaProcess, ready_replicas

_STORE_BYTES = 100 * 1024 * 1024
_CPUS = 2
_END_SECONDS = 30.0


class RayNodes:
    """The nodes of a running cluster. The first one has the controller, the HTTP proxy and no replicas."""

    def __init__(self, cluster: Any, http: int) -> None:
        self._cluster = cluster
        self._gone: set[str] = set()
        self.http = http
        """The HTTP port of the first node."""

    def deploy(self, arguments: Mapping[str, Any], name: str, route: str) -> None:
        """Start or update an application of archives, and wait until all its replicas are ready."""
        from ray import serve

        from torchserve_neuron_lstm.hosts.ray import app

        serve.run(app(arguments), name=name, route_prefix=route)

    def delete(self, name: str) -> None:
        """Delete an application."""
        from ray import serve

        serve.delete(name)

    def ready(self) -> list[ReplicaProcess]:
        """The replicas that take requests now."""
        from ray.serve.context import _get_global_client

        return ready_replicas(_get_global_client().get_serve_details(), self._gone)

    def kill(self, replica: ReplicaProcess) -> bool:
        """Kill the process of a replica, as in a crash. Returns whether it was still running."""
        self._gone.add(replica.id)
        return _kill(replica.pid)

    def remove(self, node: str) -> None:
        """Kill a node's raylet, and with it its replicas."""
        self._gone.update(replica.id for replica in self.ready() if replica.node == node)
        (found,) = [one for one in self._cluster.worker_nodes if one.node_id == node]
        self._cluster.remove_node(found, allow_graceful=False)

    def add(self) -> None:
        """Start another node, and wait until the cluster has it."""
        self._cluster.add_node(num_cpus=_CPUS, object_store_memory=_STORE_BYTES)


@contextmanager
def running_nodes(count: int, directory: Path) -> Iterator[RayNodes]:
    """Start a head without CPUs and `count` nodes; all processes are ended at the end.

    `directory` has the files of the cluster. Its path must be short: it contains the names of sockets.
    """
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
    head = {"num_cpus": 0, "object_store_memory": _STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    # Ray's hooks can be set by the main thread alone, and a node is added by another: such nodes end with their head
    cluster._shutdown_at_exit = False  # noqa: SLF001 - an argument of the cluster, for the head and the others alike
    nodes = RayNodes(cluster, http)
    last: list[ReplicaProcess] = []
    try:
        for _ in range(count):
            nodes.add()
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": http})
        yield nodes
        last = nodes.ready()
        serve.shutdown()
    finally:
        ray.shutdown()
        cluster.shutdown()
        _wait_until_ended([replica.pid for replica in last])


def _wait_until_ended(pids: list[int]) -> None:
    """Wait for processes that end by themselves when their raylet has, and kill those that do not."""
    deadline = time.monotonic() + _END_SECONDS
    while pids := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        if time.monotonic() > deadline:
            for pid in pids:
                _kill(pid)
            return
        time.sleep(0.1)


def _kill(pid: int) -> bool:
    """Kill a process; returns whether it still ran."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False
