"""TorchServe's own settings that a worker must know: its limit of a response, where the server has it.

TorchServe does not pass it to its workers. The worker's parent process is the server. Its command line or its
environment names its configuration file; otherwise this is `config.properties` in its working directory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from .responses import DEFAULT_MAX_RESPONSE_BYTES

_LARGEST_FILE = 1 << 20  # bytes
_ENTRY = re.compile(r"(?P<key>[^=:\s]*)\s*[=:]?\s*(?P<value>.*)")


def max_response_bytes(environment: Mapping[str, str], properties: Mapping[str, str]) -> int:
    """Return the limit of one body in bytes.

    `properties` are those of the server's configuration, as far as they are known. The environment counts where the
    server reads it (`enable_envvars_config`); elsewhere it can only lower the limit, for a server that is not found.

    >>> max_response_bytes({"TS_MAX_RESPONSE_SIZE": "9000000"}, {"enable_envvars_config": "true"})
    9000000
    >>> max_response_bytes({"TS_MAX_RESPONSE_SIZE": "9000000"}, {"max_response_size": "2000"})
    2000
    >>> max_response_bytes({"TS_MAX_RESPONSE_SIZE": "1000"}, {}), max_response_bytes({}, {})
    (1000, 6553500)
    """
    given = _positive(environment.get("TS_MAX_RESPONSE_SIZE"))
    written = _positive(properties.get("max_response_size")) or DEFAULT_MAX_RESPONSE_BYTES
    if given is None:
        return written
    return given if properties.get("enable_envvars_config", "").lower() == "true" else min(given, written)


def read_server_properties(process: Path) -> dict[str, str]:
    """Return the server's configuration by its `/proc` folder; empty if it cannot be read."""
    try:
        command = (process / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
        folder = (process / "cwd").readlink()
        file = folder / (_configuration_file(command, os.environ) or "config.properties")
        if not file.is_file():
            return {}
        with file.open("rb") as opened:
            return parse_properties(opened.read(_LARGEST_FILE).decode("latin-1"))
    except OSError:
        return {}


def parse_properties(text: str) -> dict[str, str]:
    r"""Return the entries of a Java properties file, which have no escapes here.

    A key ends with the first `=`, `:` or blank. A comment does not continue on the next line.

    >>> parse_properties("# C:\\\nmax_response_size = 100\nnumber_of_gpu: 0\njob_queue_size 9\nmodels={\\\n  }\n")
    {'max_response_size': '100', 'number_of_gpu': '0', 'job_queue_size': '9', 'models': '{}'}
    """
    lines: list[str] = []
    for line in map(str.lstrip, text.splitlines()):
        if lines and lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1] + line
        elif line[:1] not in ("", "#", "!"):
            lines.append(line)
    matches = map(_ENTRY.match, lines)
    return {found["key"]: found["value"].strip() for found in matches if found is not None}


def _configuration_file(command: Sequence[str], environment: Mapping[str, str]) -> str | None:
    if "-f" in command[:-1]:
        return command[command.index("-f") + 1]
    set_by_system = next((word for word in command if word.startswith("-DtsConfigFile=")), None)
    return environment.get("TS_CONFIG_FILE") or (set_by_system and set_by_system.partition("=")[2])


def _positive(text: str | None) -> int | None:
    digits = (text or "").strip()
    return int(digits) or None if digits.isascii() and digits.isdigit() else None
