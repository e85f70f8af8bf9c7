"""`neuron-lstm serve-ray`: archives on Ray Serve, on this machine or on a cluster."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from ...inference.errors import ArchiveError
from . import Commands, positive, print_line

_LAST_PORT = 65_535


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "serve-ray",
        help="serve archives on Ray, on this machine or on a cluster",
        description="Serve archives with Ray Serve until Ctrl-C. A model's name is the --model-name of packaging. "
        "The Ray that RAY_ADDRESS names, or that `ray start` started on this machine, is used; otherwise the command "
        "starts one, and stops it at its end. Ray's environment variables have their usual effect: "
        "RAY_SERVE_ENABLE_HA_PROXY=1 with RAY_SERVE_THROUGHPUT_OPTIMIZED=1 selects its faster ingress.",
    )
    port = partial(positive, largest=_LAST_PORT)
    command.add_argument("archives", type=Path, nargs="+", metavar="archive", help="a .mar, a .tar.gz or a folder")
    command.add_argument(
        "--threads", type=positive, default=1, help="threads of each program call, and CPUs of a replica (%(default)s)"
    )
    command.add_argument(
        "--replicas", type=positive, default=1, help="the minimum number of replicas, started at first (%(default)s)"
    )
    command.add_argument("--max-replicas", type=positive, help="the maximum number (default: as --replicas)")
    command.add_argument("--host", default="127.0.0.1", help="address on which each node listens (%(default)s)")
    command.add_argument("--port", type=port, default=8000, help="HTTP port (%(default)s)")
    command.add_argument("--grpc-port", type=port, help="gRPC port, on all interfaces (default: no gRPC)")
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    if options.max_replicas is not None and options.max_replicas < options.replicas:
        raise ArchiveError(
            f"--max-replicas: expected {options.replicas} (--replicas) or more, got {options.max_replicas}"
        )
    try:
        from ...hosts.ray_serve.command import RaySettings, serve_archives
    except ImportError as error:
        raise ArchiveError(str(error)) from error
    given = {name: value for name, value in vars(options).items() if name != "run"}
    serve_archives(RaySettings(**given), print_line)
