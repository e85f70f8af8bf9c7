"""Ray Serve with our archive and with plain applications, behind the same ingress.

The benchmark starts it as a separate process, because Ray reads the settings of its ingress when it is imported.
The first line of its output is `ready`; it ends with its standard input.
"""

from __future__ import annotations

import os
import sys

SETTINGS = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",  # a line for each request, which a Python process parses
    # Both happen every 100 ms otherwise, also while no request comes.
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "5000",
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    # Ray gives its workers a low priority, which TorchServe's do not have.
    "RAY_worker_niceness": "0",
}
CPUS = 64
"""Logical CPUs of the node: all applications have all real ones, in turns."""
CORES = len(os.sched_getaffinity(0))
OURS = {"ours": CORES, "one": 1, "two": 2}
"""Replicas of our applications, each with one thread."""
PLAIN = {"plain": (CORES, 1), "plain-replicas": (1, CORES)}
"""Threads and replicas of the plain applications: one replica with all cores, and one for each core."""
COMPARED, SCALED = ("ours", *PLAIN), ("one", "two")
"""Applications of one server: those that are compared, and those that show how replicas scale."""


def main() -> None:
    """Serve until the standard input ends."""
    port, archive, onnx, *applications = sys.argv[1:]
    os.environ.update(SETTINGS)
    import ray
    from ray import serve
    from ray.serve.config import HTTPOptions
    from ray.serve.schema import LoggingConfig

    from torchserve_neuron_lstm.hosts.ray import app

    from .plain_ray import application

    ray.init(num_cpus=CPUS, include_dashboard=False, log_to_driver=False, configure_logging=False)
    quiet = LoggingConfig(log_level="WARNING", enable_access_log=False)  # else each line is made, and then dropped
    serve.start(http_options=HTTPOptions(host="127.0.0.1", port=int(port)), logging_config=quiet)
    targets = []
    for name in applications:
        if name in OURS:
            served = app({"archive": archive, "threads": 1, "replicas": OURS[name]})
        else:
            served = application(onnx, *PLAIN[name])
        targets.append(serve.RunTarget(served, name, f"/{name}", quiet))
    serve.run_many(targets)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
