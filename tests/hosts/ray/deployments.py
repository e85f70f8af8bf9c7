"""Program that tells how an application on a Ray of its own grows, shrinks, ends, and does not start.

Its arguments are the port, the archive, and a folder with an engine that cannot be imported.
"""

import json
import os
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_memory_monitor_refresh_ms="0", RAY_SERVE_LOG_TO_STDERR="0")

import ray
from ray import serve
from ray.serve.schema import ServeDeploySchema

MOST = 3
"""The most replicas."""
MANY, FEW = 40, 1
"""Clients of the load that comes and goes; the largest batch has 8 requests."""
SECONDS = 120
"""Time in which the number of replicas must follow the load."""
SCALING = {"min_replicas": 1, "max_replicas": MOST, "target_ongoing_requests": 8}
FAST = {"upscale_delay_s": 1, "downscale_delay_s": 2, "metrics_interval_s": 0.5, "look_back_period_s": 2}


def tell(**known: object) -> None:
    sys.stdout.write(json.dumps({name.replace("_", " "): value for name, value in known.items()}) + "\n")
    sys.stdout.flush()


def deploy(archive: str, environment: dict[str, str]) -> None:
    """Deploy the application as `serve deploy` does, with autoscaling that reacts within seconds."""
    config = {
        "applications": [
            {
                "name": "models",
                "import_path": "torchserve_neuron_lstm.hosts.ray:app",
                "args": {"archive": archive, "max_replicas": MOST},
                "deployments": [{"name": "archives", "autoscaling_config": {**SCALING, **FAST}}],
                "runtime_env": {"env_vars": environment},
            }
        ]
    }
    serve.context._get_global_client().deploy_apps(ServeDeploySchema.model_validate(config))


def application() -> serve.schema.ApplicationStatusOverview:
    return serve.status().applications["models"]


def wait_for(status: str) -> str:
    until = time.monotonic() + SECONDS
    while application().status != status:
        assert time.monotonic() < until, application()
        time.sleep(0.2)
    return " ".join(one.message for one in application().deployments.values())


def running() -> int:
    return int(application().deployments["archives"].replica_states.get("RUNNING", 0))


def ask(port: str) -> str:
    body = json.dumps([[0.5] * 3] * 16).encode()
    url = f"http://127.0.0.1:{port}/predictions/scorer"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"})) as reply:
            return str(reply.status)
    except urllib.error.HTTPError as error:
        return f"{error.code}: {error.read()!r}"
    except OSError as error:
        return str(error)


@contextmanager
def asked(port: str, clients: int, statuses: Counter[str]) -> Iterator[None]:
    """Send requests from some clients, each one after the other, and count the statuses."""
    ending = threading.Event()

    def ask_until_the_end() -> Counter[str]:
        found: Counter[str] = Counter()
        while not ending.is_set():
            found[ask(port)] += 1
        return found

    with ThreadPoolExecutor(clients) as pool:
        asking = [pool.submit(ask_until_the_end) for _ in range(clients)]
        try:
            yield
        finally:
            ending.set()
        for one in asking:
            statuses.update(one.result())


def replicas_become(count: int) -> list[int]:
    """Wait until so many replicas run; return each number of them on the way."""
    seen = [running()]
    until = time.monotonic() + SECONDS
    while seen[-1] != count:
        assert time.monotonic() < until, seen
        time.sleep(0.1)
        if (now := running()) != seen[-1]:
            seen.append(now)
    return seen


def unpacked() -> int:
    return len([*Path(tempfile.gettempdir()).glob(".neuron-lstm-*")])


def main() -> None:
    """Start Ray, deploy, load, delete, deploy without the engine, and end it."""
    port, archive, without_engine = sys.argv[1:]
    ray.init(address="local", num_cpus=MOST, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": int(port)})
        deploy(archive, {})
        wait_for("RUNNING")
        statuses: Counter[str] = Counter()
        seen = []
        for clients, wanted in ((FEW, 1), (MANY, MOST), (FEW, 1)):
            with asked(port, clients, statuses):
                seen += replicas_become(wanted)
        tell(replicas=seen, statuses=statuses, unpacked=unpacked())
        serve.delete("models")
        tell(unpacked_afterwards=unpacked())
        deploy(archive, {"PYTHONPATH": without_engine})
        tell(without_the_engine=wait_for("DEPLOY_FAILED"))
    finally:
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main()
