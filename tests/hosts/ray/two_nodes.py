"""Cluster of two nodes on this machine, which tells on standard output how two applications fare.

Its arguments are the port, the archive with a shared store, and the one with sessions on disk.
"""

import json
import os
import sys
import time
import urllib.request

os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_memory_monitor_refresh_ms="0", RAY_SERVE_LOG_TO_STDERR="0")

import ray
from ray import serve
from ray.cluster_utils import Cluster

from torchserve_neuron_lstm.hosts.ray import app
from torchserve_neuron_lstm.inference.errors import ArchiveError

SECONDS = 8
"""Time in which a replica with a store would be ready."""


def tell(**known: object) -> None:
    sys.stdout.write(json.dumps({name.replace("_", " "): value for name, value in known.items()}) + "\n")
    sys.stdout.flush()


def ask(port: str, step: int) -> int:
    headers = {"Content-Type": "application/json", "ts-request-sequence-id": "a", "ts-request-sequence-step": str(step)}
    if step == 0:
        headers["ts-request-sequence-start"] = "true"
    url = f"http://127.0.0.1:{port}/predictions/shared"
    request = urllib.request.Request(url, json.dumps([[0.5] * 3] * 4).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as reply:
        return int(reply.status)


def main() -> None:
    port, shared, disk = sys.argv[1:]
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=2)
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
        serve.start(http_options={"host": "127.0.0.1", "port": int(port)})
        target = serve.RunTarget(app({"archive": shared}), name="shared", route_prefix="/")
        serve.run_many([target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)
        time.sleep(SECONDS)
        tell(without_a_store=serve.status().applications["shared"].status.value)
        while serve.status().applications["shared"].status != "RUNNING":
            time.sleep(0.5)
        tell(with_a_store=[ask(port, 0), ask(port, 4)])
        try:
            app({"archive": disk})
        except ArchiveError as refused:
            tell(on_disk=str(refused))
        serve.shutdown()
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
