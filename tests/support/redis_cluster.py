"""Real Redis and Valkey clusters for one test, on free ports."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError
from redis_server import SECONDS, RedisServer, free_port, running

SHARDS = 3
SLOTS = 16384
_BUS = 10_000
"""The bus of a server has its port and this: the oldest servers have no setting for it."""
_MANY_KEYS = 10_000


@dataclass
class LocalCluster:
    """Servers that form a cluster: the first `SHARDS` began as primaries, the others as their replicas."""

    servers: list[RedisServer] = field(default_factory=list)
    identities: dict[bytes, RedisServer] = field(default_factory=dict)
    """The servers by the names that they have in the cluster."""

    @property
    def url(self) -> str:
        """The address of one server, as a client is told it."""
        return self.servers[0].url

    @property
    def primaries(self) -> list[RedisServer]:
        """The servers that have slots now, in the order of their slots, as far as a running one knows."""
        return list(dict.fromkeys(self._server(entry[2]) for entry in self._slots()))

    def owner(self, slot: int) -> RedisServer:
        return next(self._server(entry[2]) for entry in self._slots() if entry[0] <= slot <= entry[1])

    def replicas_of(self, primary: RedisServer) -> list[RedisServer]:
        """The replicas of a server that has slots now."""
        entries = [entry for entry in self._slots() if self._server(entry[2]) is primary]
        return list(dict.fromkeys(self._server(one) for entry in entries for one in entry[3:]))

    def wait_for_failover(self, slot: int, killed: RedisServer) -> RedisServer:
        """Wait until every running server says that another server than `killed` has the slot, and return it."""

        def is_over(server: RedisServer) -> bool:
            owners = [entry[2] for entry in ask(server, "CLUSTER", "SLOTS") if entry[0] <= slot <= entry[1]]
            return bool(owners) and self._server(owners[0]) is not killed

        wait_until(lambda: all(is_over(server) for server in self.running))
        return self.owner(slot)

    def wait_until_complete(self) -> None:
        """Wait until every server knows all others, all slots are served, and all replicas have caught up."""
        for server in self.servers:
            wait_until(partial(self._is_complete, server))

    def begin_move(self, slot: int, target: RedisServer) -> SlotMove:
        source = self.owner(slot)
        ask(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", identity(source))
        ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", identity(target))
        return SlotMove(self, slot, source, target)

    def flush(self) -> None:
        for server in self.primaries:
            ask(server, "FLUSHALL")

    @property
    def running(self) -> list[RedisServer]:
        return [server for server in self.servers if server.is_running]

    def _slots(self) -> list[Any]:
        return sorted(ask(self.running[0], "CLUSTER", "SLOTS"))

    def _server(self, told: Sequence[Any]) -> RedisServer:
        return self.identities[told[2]]

    def _is_complete(self, server: RedisServer) -> bool:
        facts = _facts(ask(server, "CLUSTER", "INFO"))
        whole = facts["cluster_state"] == "ok" and int(facts["cluster_known_nodes"]) == len(self.servers)
        replication = _facts(ask(server, "INFO", "replication"))
        told = {one[2] for entry in ask(server, "CLUSTER", "SLOTS") for one in entry[2:]}
        return whole and replication.get("master_link_status", "up") == "up" and told == set(self.identities)


@dataclass(frozen=True)
class SlotMove:
    """A slot that moves from one server to another, as `redis-cli --cluster reshard` moves it."""

    cluster: LocalCluster
    slot: int
    source: RedisServer
    target: RedisServer

    def move_keys(self, most: int = _MANY_KEYS) -> int:
        """Move some keys, and return their number."""
        keys = ask(self.source, "CLUSTER", "GETKEYSINSLOT", self.slot, most)
        if keys:
            self.move_key(*keys)
        return len(keys)

    def move_key(self, *keys: str | bytes) -> None:
        ask(self.source, "MIGRATE", "127.0.0.1", self.target.port, "", 0, 1000 * SECONDS, "KEYS", *keys)

    def finish(self) -> None:
        """Move the other keys, and tell all servers."""
        while self.move_keys():
            pass
        others = [one for one in self.cluster.primaries if one not in (self.source, self.target)]
        for server in (self.target, self.source, *others):
            ask(server, "CLUSTER", "SETSLOT", self.slot, "NODE", identity(self.target))


@contextmanager
def running_cluster(
    program: Path,
    directory: Path,
    *options: str,
    replicas: int = 0,
    node_timeout: float = 2.0,
    announced: Callable[[int], int] = int,
) -> Iterator[LocalCluster]:
    """Start three primaries, and `replicas` of each; kill all servers at the end.

    A primary that does not answer for `node_timeout` seconds is replaced by a replica. `announced` returns the port by
    which clients are told of a server that has this one.
    """
    with ExitStack() as stack:
        cluster = LocalCluster()
        for number in range(SHARDS * (1 + replicas)):
            folder = directory / f"node-{number}"
            folder.mkdir()
            port = _free_port_with_bus()
            announce = ("--cluster-announce-port", str(announced(port)))
            server = cluster_server(program, folder, port, node_timeout, *announce, *options)
            cluster.servers.append(stack.enter_context(running(server)))
        join(cluster)
        yield cluster


def cluster_server(program: Path, directory: Path, port: int, node_timeout: float, *options: str) -> RedisServer:
    """Return a server that can join a cluster, and that serves its slots whatever happens to others."""
    return RedisServer(
        program, directory, "--cluster-enabled", "yes", "--cluster-node-timeout", str(int(1000 * node_timeout)),
        "--cluster-require-full-coverage", "no", "--repl-diskless-sync-delay", "0", *options, port=port,
    )  # fmt: skip


def join(cluster: LocalCluster) -> None:
    """Make a cluster of running servers: the first ones share the slots, the others follow them in turn."""
    primaries, replicas = cluster.servers[:SHARDS], cluster.servers[SHARDS:]
    for number, server in enumerate(primaries):
        first, after = (SLOTS * bound // SHARDS for bound in (number, number + 1))
        ask(server, "CLUSTER", "ADDSLOTS", *range(first, after))
    for number, server in enumerate(cluster.servers):
        ask(server, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        ask(server, "CLUSTER", "MEET", "127.0.0.1", cluster.servers[0].port, cluster.servers[0].port + _BUS)
    cluster.identities.update((identity(server), server) for server in cluster.servers)
    for server in cluster.servers:
        wait_until(partial(_knows, server, len(cluster.servers)))
    for number, server in enumerate(replicas):
        ask(server, "CLUSTER", "REPLICATE", identity(primaries[number % SHARDS]))
    cluster.wait_until_complete()


def ask(server: RedisServer, *words: Any) -> Any:
    """Return the reply of one server, as it is on the wire."""
    with server.client() as client:
        client.response_callbacks.clear()
        return client.execute_command(*words)


def identity(server: RedisServer) -> bytes:
    """Return the name of a server in its cluster."""
    name: bytes = ask(server, "CLUSTER", "MYID")
    return name


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds; a server that does not answer yet is asked again."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            if holds():
                return
        except RedisError:
            if time.monotonic() > deadline:
                raise
        if time.monotonic() > deadline:
            raise TimeoutError(f"the cluster is not as expected after {SECONDS} seconds")
        time.sleep(0.05)


def _knows(server: RedisServer, count: int) -> bool:
    return int(_facts(ask(server, "CLUSTER", "INFO"))["cluster_known_nodes"]) == count


def _facts(told: bytes) -> dict[str, str]:
    return dict(line.partition(":")[::2] for line in told.decode().splitlines())


def _free_port_with_bus() -> int:
    """Return a free port for clients, with a free port for the bus."""
    while True:
        port = free_port()
        with socket.socket() as bus:
            try:
                bus.bind(("127.0.0.1", port + _BUS))
            except (OSError, OverflowError):
                continue
            return port
