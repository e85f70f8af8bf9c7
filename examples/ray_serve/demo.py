"""`make demo-ray`: two nodes, a replica is killed, a node removed; every request is answered.

Both nodes are on this machine. It stops every process that it starts, and removes every file that it writes.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(EXAMPLES))
# Ray sends usage reports otherwise, and ends processes when other programs take the memory.
os.environ.update(
    RAY_USAGE_STATS_ENABLED="0",
    RAY_memory_monitor_refresh_ms="0",
    RAY_DEDUP_LOGS="0",
    RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S="60",  # a proxy that takes longer to start than this many seconds is killed
)

import ray  # noqa: E402 - not before the environment is set
from demo import Answer, archive, console, eager_difference, eager_model, run, sample_texts, step, terminated  # noqa: E402 - the same
from ray import serve  # noqa: E402 - the same
from ray.cluster_utils import Cluster  # noqa: E402 - the same
from rich import box  # noqa: E402 - the same
from rich.progress import track  # noqa: E402 - the same
from rich.table import Table  # noqa: E402 - the same
from torchserve_process import free_ports  # noqa: E402 - the same

from torchserve_neuron_lstm.hosts.ray import app  # noqa: E402 - the same

NAME = "surprise"
REPLICAS = 2
TRIES, PAUSE_S = 100, 0.2
"""Tries of one request, and the seconds between two of them."""
ALLOWED_BITS = 1e-3
"""The accepted difference of a byte's bits from the model in eager mode."""


@dataclass(frozen=True)
class Sent:
    """One request: its text, the status of its last answer (0: none), the number of tries, and the bits."""

    text: bytes
    status: int
    tries: int
    bits: list[float]


@dataclass(frozen=True)
class Place:
    """A running replica: its process, and the node that it is on."""

    pid: int
    node: str


def main() -> None:
    """Train, archive, serve, disturb and report."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--steps", type=int, default=200, help="of training (%(default)s)")
    arguments.add_argument("--seconds", type=int, default=60, help="of requests (%(default)s)")
    arguments.add_argument("--clients", type=int, default=4, help="that ask at once (%(default)s)")
    options = arguments.parse_args()
    signal.signal(signal.SIGTERM, terminated)
    with tempfile.TemporaryDirectory(prefix="rs-") as folder:
        work = Path(shutil.copytree(EXAMPLES / "surprise", Path(folder) / "surprise"))
        shutil.copy(Path(__file__).with_name("model-config.yaml"), work)
        step("1/4 Train a next-byte LSTM on the English that comes with Python")
        run(work, sys.executable, "train.py", "--steps", str(options.steps))
        step("2/4 Archive it with the stock torch-model-archiver")
        archive(work)
        step(f"3/4 Start two nodes of Ray on this machine, and {REPLICAS} replicas")
        with two_nodes(Path(folder) / "r") as cluster, served(work / f"{NAME}.mar") as port:
            step("4/4 Send requests all the time, kill a replica, and then remove a node")
            sent = ask_and_disturb(cluster, port, options.seconds, options.clients)
        refused = report(sent, work)
    console.print("Stopped Ray.", style="bold")
    if refused:
        sys.exit("the demo failed: not every request was answered as by the model")


@contextmanager
def two_nodes(folder: Path) -> Iterator[Cluster]:
    """Start a head with two CPUs and a node with one; the head has room for the replicas of both."""
    # A separate folder: the one that Ray shares tells other programs where the last cluster is.
    # Replicas that are killed leave the files that they unpacked: those are here too.
    folder.mkdir()
    os.environ.update(RAY_TMPDIR=str(folder), TMPDIR=str(folder))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@contextmanager
def served(archive: Path) -> Iterator[int]:
    """Serve the archive, and return the port."""
    (port,) = free_ports(1)
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    # The proxy of the head alone: two of them on one machine would want the same port.
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
    try:
        serve.run(app({"archive": str(archive), "replicas": REPLICAS}), name=NAME, route_prefix="/")
        yield port
    finally:
        serve.shutdown()


def ask_and_disturb(cluster: Cluster, port: int, seconds: int, clients: int) -> list[Sent]:
    """Send requests for some seconds; a replica is killed after a third of them, a node removed after two."""
    texts, ending = sample_texts(), threading.Event()
    disturbances: dict[int, Callable[[], str]] = {
        seconds // 3: kill_a_replica,
        2 * seconds // 3: lambda: remove_a_node(cluster),
    }
    with ThreadPoolExecutor(clients) as pool, ExitStack() as stack:
        stack.callback(ending.set)
        asking = [pool.submit(ask_until, ending, port, texts[i:] + texts[:i]) for i in range(clients)]
        for second in track(range(seconds), "requests are sent", console=console):
            if second in disturbances:
                console.print(disturbances[second]())
            time.sleep(1)
        ending.set()
        return [sent for one in asking for sent in one.result()]


def kill_a_replica() -> str:
    """Kill the process of one replica, as a crash or the kernel would."""
    place = places()[0]
    os.kill(place.pid, signal.SIGKILL)
    return f"Killed the replica in process {place.pid}."


def remove_a_node(cluster: Cluster) -> str:
    """Kill the processes of the second node, as a lost machine."""
    (node,) = cluster.worker_nodes
    there = sum(place.node == node.node_id for place in places())
    cluster.remove_node(node, allow_graceful=False)
    return f"Removed a node, with {there} of {REPLICAS} replicas."


def places() -> list[Place]:
    """The replicas that run."""
    found = serve.context._get_global_client().get_serve_details()  # noqa: SLF001 - without its dashboard, Ray has no other way
    (deployment,) = found["applications"][NAME]["deployments"].values()
    return [Place(one["pid"], one["node_id"]) for one in deployment["replicas"] if one["state"] == "RUNNING"]


def ask_until(ending: threading.Event, port: int, texts: Sequence[bytes]) -> list[Sent]:
    """Send one request after the other until the end."""
    return [ask(port, text) for text in itertools.takewhile(lambda _: not ending.is_set(), itertools.cycle(texts))]


def ask(port: int, text: bytes) -> Sent:
    """Send a request, and again while the server answers 5xx or not at all.

    It belongs to no session, so that is safe.
    """
    status, body = post(port, text)
    tries = 1
    while (status == 0 or status >= 500) and tries < TRIES:
        time.sleep(PAUSE_S)
        status, body = post(port, text)
        tries += 1
    return Sent(text, status, tries, json.loads(body)["bits"] if status == 200 else [])


def post(port: int, text: bytes) -> tuple[int, bytes]:
    """Send a request once; the status is 0 if the connection breaks."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", f"/predictions/{NAME}", text, {"Content-Type": "text/plain; charset=utf-8"})
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def report(sent: Sequence[Sent], work: Path) -> bool:
    """Print the table. Returns whether a request has no answer, or one that is not the model's."""
    model = eager_model(work)
    answered = [one for one in sent if one.status == 200]
    equal = sum(eager_difference(model, Answer(one.text, 0.0, one.bits, 0.0)) <= ALLOWED_BITS for one in answered)
    rows = {
        "requests": len(sent),
        "answered at first": sum(one.tries == 1 for one in answered),
        "answered when sent again": sum(one.tries > 1 for one in answered),
        "refused for good": len(sent) - len(answered),
        "equal to the model in eager mode": equal,
    }
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, count in rows.items():
        table.add_row(name, str(count))
    console.print(table)
    return equal < len(sent)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped")
    except subprocess.CalledProcessError as failed:
        sys.exit(f"the demo failed: {failed}")
