"""Settings of a TorchServe that serves archives at little cost: config.properties.

Pure functions. docs/serve.md has the reason of each setting, and what it is worth.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from ...inference.errors import ArchiveError

DEFAULT_PORT = 8080
LAUNCHER_SETTINGS = ("vmargs", "plugins_path")
"""Settings that TorchServe's Python reads, and its Java does not."""
_NAMES = """
allowed_urls async_logging blacklist_env_vars certificate_file cors_allowed_headers cors_allowed_methods
cors_allowed_origin cpp_log_config cpu_launcher_args cpu_launcher_enable debug decode_input_request
default_response_timeout default_service_handler default_startup_timeout default_workers_per_model
disable_system_metrics disable_token_authorization enable_envvars_config enable_grpc_ssl enable_metrics_api
enable_model_api grpc_inference_address grpc_inference_max_connection_age_grace_ms
grpc_inference_max_connection_age_ms grpc_inference_port grpc_management_address
grpc_management_max_connection_age_grace_ms grpc_management_max_connection_age_ms grpc_management_port
inference_address initial_distribution_port initial_worker_port install_py_dep_per_model io_ratio ipex_enable
ipex_gpu_enable job_queue_size keystore keystore_pass keystore_type limit_max_image_pixels load_models
management_address max_request_size max_response_size metric_time_interval metrics_address metrics_config
metrics_mode model_metrics_auto_detect model_server_home model_snapshot model_store models netty_client_threads
number_of_gpu number_of_netty_threads prefer_direct_buffer private_key_file python service_envelope
system_metrics_cmd token_expiration_min ts_header_key_sequence_end ts_header_key_sequence_id
ts_header_key_sequence_start ts_open_inference_protocol unregister_model_timeout use_env_allowed_urls use_native_io
workflow_store
"""
TORCHSERVE_SETTINGS = (*LAUNCHER_SETTINGS, *_NAMES.split())
"""Settings of TorchServe 0.12, the last release: it ignores others without a message."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
"""A name that torch-model-archiver accepts."""
_LEAST_BYTES = 6_553_500
"""TorchServe's own limit of a request and of a response."""
_MOST_BYTES = 2**31 - 1
"""The largest limit that TorchServe can read: an int of Java. Earlier archives may have a larger one."""
_MINUTES_OF_A_YEAR = 525_600


@dataclass(frozen=True)
class ServeOptions:
    """Archives, and how TorchServe serves them."""

    archives: Sequence[Path]
    host: str = "127.0.0.1"
    """The address of the inference port; the other ports are on the loopback interface."""
    port: int = DEFAULT_PORT
    """The inference port; those of management, metrics, gRPC inference and gRPC management follow it."""
    tokens: bool = True
    """Whether requests need a token."""
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Settings that replace ours, or are added to them."""


def properties(options: ServeOptions, files: Mapping[str, str], body_bytes: int, metrics: Path) -> dict[str, str]:
    """Return the settings of TorchServe by their names.

    `files` has the file or folder of each archive in the model store, by the model's name; `body_bytes` is the largest
    body that one of them takes. `metrics` is the file that names our metrics.

    Raises `ArchiveError`: TorchServe cannot have a model of such a name or file, or an override is of the command line.
    """
    if taken := [name for name in ("load_models", "model_store") if name in options.overrides]:
        raise ArchiveError(f"--set {taken[0]}: it follows from the archives of the command line")
    most_bytes = str(min(_MOST_BYTES, max(_LEAST_BYTES, body_bytes)))
    return {
        "inference_address": f"http://{options.host}:{options.port}",
        "management_address": f"http://127.0.0.1:{options.port + 1}",
        "metrics_address": f"http://127.0.0.1:{options.port + 2}",
        "grpc_inference_address": "127.0.0.1",
        "grpc_inference_port": str(options.port + 3),
        "grpc_management_address": "127.0.0.1",
        "grpc_management_port": str(options.port + 4),
        "disable_token_authorization": str(not options.tokens).lower(),
        "token_expiration_min": str(_MINUTES_OF_A_YEAR),
        "load_models": ",".join(_model(name, file) for name, file in files.items()),
        "allowed_urls": "none",
        "install_py_dep_per_model": "false",
        "job_queue_size": "1000",
        "max_request_size": most_bytes,
        "max_response_size": most_bytes,
        "decode_input_request": "false",
        "metrics_mode": "prometheus",
        "metrics_config": str(metrics),
        "disable_system_metrics": "true",
        "vmargs": "-Xmx1g -XX:+UseSerialGC -XX:+ExitOnOutOfMemoryError",
        **options.overrides,
    }


def _model(name: str, file: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise ArchiveError(
            f"TorchServe cannot have a model called {name!r}: archive it with a --model-name of letters, digits, _ . -"
        )
    if "," in file:
        raise ArchiveError(f"TorchServe reads a comma in {file} as the end of a file's name: rename it")
    return f"{name}={file}"


def unknown_settings(names: list[str]) -> list[str]:
    """Return the names that TorchServe does not read.

    After each one that is like a name that it reads, the message asks for that.
    """
    return [name + _suggestion(name) for name in names if name not in TORCHSERVE_SETTINGS]


def _suggestion(name: str) -> str:
    spellings = {_plain(setting): setting for setting in TORCHSERVE_SETTINGS}
    near = get_close_matches(_plain(name[:100]), spellings, n=1)
    return f" (did you mean {spellings[near[0]]}?)" if near else ""


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def properties_text(found: Mapping[str, str]) -> str:
    r"""Return the text of config.properties, from which TorchServe reads these values.

    Java reads a backslash as the beginning of an escape, and bytes as Latin-1. TorchServe's Python reads the
    `LAUNCHER_SETTINGS` as they are.

    >>> print(properties_text({"allowed_urls": r"https://a\.b/.*", "metrics_config": "/é"}), end="")
    allowed_urls=https://a\\.b/.*
    metrics_config=/\u00e9

    Raises `ArchiveError`: TorchServe cannot read a value.
    """
    return "".join(f"{name}={_written(name, value)}\n" for name, value in found.items())


def _written(name: str, value: str) -> str:
    if name in LAUNCHER_SETTINGS:
        if not value.isascii():
            raise ArchiveError(f"{name}: TorchServe reads ASCII alone, got {value!a}")
        return value
    try:
        pairs = value.replace("\\", "\\\\").encode("utf-16-be")
    except UnicodeEncodeError as error:  # a path of other bytes, or one that LC_ALL=C does not decode
        raise ArchiveError(
            f"{name}: TorchServe cannot read {value!a}, which is not text in the locale's encoding: choose "
            f"another path, or set LC_ALL to a UTF-8 locale"
        ) from error
    units = [int.from_bytes(pairs[at : at + 2], "big") for at in range(0, len(pairs), 2)]
    return "".join(chr(unit) if unit < 128 else f"\\u{unit:04x}" for unit in units)


_FILES = ("metrics_config", "keystore", "private_key_file", "certificate_file", "cpp_log_config")
_FOLDERS = ("workflow_store", "model_server_home", "plugins_path")


_EXPECTED = (
    ("_(size|timeout|threads|port|min|ms|worker|ratio|gpu|workers_per_model)$", "[0-9]{1,10}", "a whole number"),
    ("^(debug|disable_|enable_|use_|prefer_)|_(enable|dep_per_model)$", "(?i:true|false)", "true or false"),
    ("^metrics_mode$", "log|prometheus|legacy", "log, prometheus or legacy"),
    ("^service_envelope$", "", "nothing: the handler reads JSON, V2 and .npy by itself"),
)
"""Patterns of names, the pattern of their values, and what that is in words."""


def check_values(overrides: Mapping[str, str]) -> None:
    """Refuse a value that TorchServe cannot read, or takes for another one. Raises `ArchiveError`: there is one."""
    for name, value in overrides.items():
        for names, pattern, expected in _EXPECTED:
            if name in TORCHSERVE_SETTINGS and re.search(names, name) and re.fullmatch(pattern, value) is None:
                raise ArchiveError(f"--set {name}: expected {expected}, got {value!r}")


def check_absolute(overrides: Mapping[str, str]) -> None:
    """Refuse a setting that is not an absolute path.

    Raises `ArchiveError`: there is one; the message has the path to write.
    """
    for name, value in _given(overrides, (*_FILES, *_FOLDERS)):
        if not Path(value).is_absolute():
            raise ArchiveError(
                f"--set {name}: expected an absolute path, because TorchServe runs in another folder, got {value!r}: "
                f"{_remedy(name, value)}"
            )


def _remedy(name: str, value: str) -> str:
    if not value:
        return "give its path, or leave it out"
    path = Path(value).expanduser() if value.startswith("~/") else Path(value)  # a shell leaves KEY=~/FILE as it is
    return f"write {name}={path.absolute()}"


def check_files(overrides: Mapping[str, str]) -> None:
    """Refuse a setting that names no file that can be read here. Raises `ArchiveError`: there is one."""
    for name, value in _given(overrides, _FILES):
        if not Path(value).is_file():
            raise ArchiveError(f"--set {name}: there is no file {value}")
        if not os.access(value, os.R_OK):
            raise ArchiveError(f"--set {name}: {value} cannot be read: change its permissions")


def _given(overrides: Mapping[str, str], names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    return ((name, overrides[name]) for name in names if name in overrides)
