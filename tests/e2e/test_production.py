"""The commands of docs/production.md on a host with the packages that it names, and no others."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import venv
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import python_path
import torch
import warm_archiver
from archiving import archived, write_source
from bare_host import can_import
from packaging.requirements import Requirement
from rest import JSON, assert_close, get, post
from torch import nn
from torchserve_process import free_ports, stop
from waiting import wait_for

pytestmark = pytest.mark.ci

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "production"
TEXT = (ROOT / "docs" / "production.md").read_text(encoding="utf-8")
PORTS = ("8080", "8081", "8082", "7070", "7071")
ROWS = "[[…], […], […]]"
IDS = [5, 17, 99]
BLOCK = """
inputs: {ids: {dtype: int64, shape: [batch, time]}}
lengths: lengths
outputs: [tags]
buckets: {batch: [1, 8], length: [16]}
backend: eager
"""


def blocks(language: str, title: str) -> list[str]:
    section = TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def closure(names: Sequence[str]) -> dict[str, metadata.Distribution]:
    found: dict[str, metadata.Distribution] = {}
    pending = list(names)
    while pending:
        name = pending.pop()
        if name.lower() not in found:
            found[name.lower()] = metadata.distribution(name)
            needs = [Requirement(text) for text in found[name.lower()].requires or ()]
            pending += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    return found


def make_host(folder: Path, names: Sequence[str]) -> None:
    """Make an environment with these distributions and their requirements alone, as links to those here."""
    venv.create(folder, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    for distribution in closure(names).values():
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (packages / top).exists():
                (packages / top).symlink_to(Path(str(distribution.locate_file(top))))
    program = folder / "bin" / "torchserve"
    program.write_text(f"#!{folder}/bin/python\nfrom ts.model_server import start\n\nstart()\n")
    program.chmod(0o755)


@dataclass(frozen=True)
class Host:
    """A serving host: the folders and ports of the page, moved below one folder."""

    home: Path
    ports: dict[str, int]

    def here(self, text: str) -> str:
        for port, free in self.ports.items():
            text = re.sub(rf"(?<=[:=]){port}\b", str(free), text)
        return re.sub(r"(?<![\w.])/(opt|etc|run|srv|var)/(?=\w)", rf"{self.home}/\1/", text)

    def shell(self, command: str, *, seconds: float = 150) -> subprocess.CompletedProcess[str]:
        (functions, _) = blocks("bash", "Waiting until the server is ready")
        words = ["bash", "-c", self.here(functions + command)]
        return subprocess.run(
            words, cwd=self.home / "run" / "torchserve", capture_output=True, text=True, check=False, timeout=seconds
        )

    def key(self) -> dict[str, str]:
        keys = json.loads((self.home / "run" / "torchserve" / "key_file.json").read_text())
        return {"Authorization": f"Bearer {keys['inference']['key']}"}

    def requests(self, version: str) -> float:
        told = get(self.ports["8082"], "/metrics").body.decode()
        values = re.findall(rf'^neuron_lstm_requests_total{{.*ModelVersion="{version}".* (\S+)$', told, re.MULTILINE)
        return sum(map(float, values))

    def pending(self, version: str) -> int:
        (told,) = json.loads(self.shell(f"manage http://127.0.0.1:8081/models/tagger/{version}").stdout)
        return int(told["jobQueueStatus"]["pendingRequests"])

    def tags(self, path: str) -> object:
        reply = post(self.ports["8080"], path, json.dumps(IDS).encode(), {**JSON, **self.key()})
        assert reply.status == 200, reply.body
        return reply.json


@dataclass(frozen=True)
class Production:
    host: Host
    models: dict[str, nn.Module]

    def expected(self, version: str) -> torch.Tensor:
        with torch.inference_mode():
            tags: torch.Tensor = self.models[version](torch.tensor([IDS]), torch.tensor([len(IDS)]))[0]
        return tags


def package_versions(folder: Path, host: Host) -> dict[str, nn.Module]:
    """Package the README's tagger as 1.0, and with other weights as 2.0 by the commands of the page."""
    readme = (ROOT / "README.md").read_text()
    (code,) = re.findall(r"^```python\n(# model\.py\n.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    (folder / "tagger.py").write_text(code)
    store = host.home / "srv" / "model_store"
    source = write_source(folder / "source", folder / "tagger.py", BLOCK)
    archived(source, "tagger", store)
    (store / "tagger.mar").rename(store / "tagger-1.0.mar")

    torch.manual_seed(1)
    second = type(source.model)().eval()
    torch.save(second.state_dict(), source.folder / "weights.pt")
    (commands,) = blocks("bash", "Versions and rollback")
    package, move = commands.replace("\\\n", " ").splitlines()
    done = warm_archiver.run(shlex.split(package), source.folder, os.environ)
    assert done.returncode == 0, done.stderr
    subprocess.run(shlex.split(host.here(move)), cwd=source.folder, check=True)
    return {"1.0": source.model, "2.0": second}


@pytest.fixture(scope="module")
def production(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Production]:
    with ExitStack() as stack:
        home = Path(tempfile.mkdtemp(prefix="ts-"))  # short: it contains the workers' sockets
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        for name in ("etc/torchserve", "run/torchserve", "srv/model_store", "var/log/torchserve", "tmp"):
            (home / name).mkdir(parents=True)
        host = Host(home, dict(zip(PORTS, free_ports(len(PORTS)), strict=True)))
        packages, *_ = blocks("bash", "The host")
        words = [
            Requirement(word).name
            for line in packages.splitlines()[1:3]
            for word in shlex.split(line)[2:]
            if not word.startswith(("-", "https:"))
        ]
        make_host(home / "opt" / "torchserve", words)
        (home / "etc/torchserve/config.properties").write_text(host.here((FOLDER / "config.properties").read_text()))
        shutil.copy(ROOT / "config" / "metrics.yaml", home / "etc" / "torchserve")
        models = package_versions(tmp_path_factory.mktemp("production"), host)

        unit = (FOLDER / "torchserve.service").read_text()
        (start,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
        (settings,) = re.findall(r"^Environment=(LOG_LOCATION.*)$", unit, re.MULTILINE)
        (java,) = blocks("bash", "The host")[1:]
        log = stack.enter_context((home / "out.log").open("wb"))
        process = subprocess.Popen(
            ["bash", "-c", host.here(f"{java}export {settings}\nexec {start}")],
            cwd=home / "run" / "torchserve",
            env={**os.environ, **python_path.NONE, "TMPDIR": str(home / "tmp"), "TEMP": str(home / "tmp")},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        stack.callback(stop, process)
        (_, wait) = blocks("bash", "Waiting until the server is ready")
        done = host.shell(f"set -e\n{wait}")
        assert done.returncode == 0, done.stderr + (home / "out.log").read_text()[-5000:]
        yield Production(host, models)


def test_the_host_has_what_the_page_names_and_no_more(production: Production) -> None:
    python = production.host.home / "opt" / "torchserve" / "bin" / "python"
    for name in ("torchserve_neuron_lstm", "numpy", "onnxruntime", "pydantic"):
        assert not can_import(python, name)

    assert_close(production.host.tags("/predictions/tagger"), production.expected("1.0"))
    (told,) = json.loads(production.host.shell("manage http://127.0.0.1:8081/models/tagger").stdout)
    assert told["jobQueueStatus"]["remainingCapacity"] == 200
    assert (told["modelVersion"], told["responseTimeout"]) == ("1.0", 120)
    log = (production.host.home / "out.log").read_text()
    assert "UserWarning: Failed to initialize NumPy" in log
    assert "Initial Models: tagger=tagger-1.0.mar" in log


def test_a_request_without_a_key_is_refused(production: Production) -> None:
    port = production.host.ports["8080"]
    assert get(port, "/ping").status == post(port, "/predictions/tagger", b"[5]", JSON).status == 400
    assert get(port, "/ping", production.host.key()).json == {"status": "Healthy"}

    told = get(production.host.ports["8082"], "/metrics").body.decode()
    dashboard = json.loads((FOLDER / "grafana.json").read_text())
    expressions = " ".join(target["expr"] for panel in dashboard["panels"] for target in panel["targets"])
    asked = set(re.findall(r"\((\w+)[{\[]", expressions))
    declared = set(re.findall(r"^# TYPE (\w+) ", told, re.MULTILINE))
    assert len(asked) >= 10
    assert {re.sub(r"_seconds_(sum|count|bucket)$", "_seconds", name) for name in asked} <= declared


def test_the_wait_ends_at_once_for_a_model_that_is_not_there(production: Production) -> None:
    (_, wait) = blocks("bash", "Waiting until the server is ready")
    assert production.host.shell(wait.replace("predictions/tagger", "predictions/nobody")).returncode == 22


def test_the_versions_go_as_shown(production: Production) -> None:
    host, steps = production.host, blocks("console", "Versions and rollback")
    default = {}
    for step in steps:
        command, shown = step.removeprefix("$ ").split("\n", 1)
        if "-X DELETE" in command:
            refused = json.loads(host.shell(command.replace("/2.0", "/1.0")).stdout)
            assert (refused["code"], f"`{refused['message']}`" in TEXT) == (403, True)
        done = host.shell(command)
        if shown.strip() == ROWS:
            assert_close(json.loads(done.stdout), production.expected("2.0"))
        else:
            assert json.loads(done.stdout) == json.loads(shown), done.stderr
        default[command] = host.tags("/predictions/tagger")

    register, ask, switch, back, remove = default
    for command, version in ((register, "1.0"), (ask, "1.0"), (switch, "2.0"), (back, "1.0"), (remove, "1.0")):
        assert_close(default[command], production.expected(version))
    gone = post(host.ports["8080"], "/predictions/tagger/2.0", b"[5]", {**JSON, **host.key()})
    assert (gone.status, gone.json["type"]) == (404, "ModelVersionNotFoundException")


def test_a_new_version_takes_its_share_under_load_and_gives_it_back(production: Production) -> None:
    host = production.host
    title = "A share of the requests for a new version"
    (client,), (metrics,) = blocks("python", title), blocks("console", title)
    shown = blocks("console", "Versions and rollback")
    register, _, switch, back, remove = (step.partition("\n")[0].removeprefix("$ ") for step in shown)
    names: dict[str, Any] = {}
    exec(compile(host.here(client), "docs/production.md", "exec"), names)
    key = host.key()["Authorization"].removeprefix("Bearer ")
    share, ended = [0.0], threading.Event()
    begun = {version: host.requests(version) for version in ("1.0", "2.0")}

    def send() -> list[object]:
        answers = []
        while not ended.is_set():
            answers.append(names["predict"](IDS, key, share[0]))  # raises at any status but 200
            time.sleep(0.01)
        return answers

    def manage(command: str) -> None:
        done = json.loads(host.shell(command).stdout)
        assert "code" not in done, done

    with ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(send) for _ in range(4)]
        try:
            manage(register)
            share[0] = 0.1
            old, new = host.requests("1.0"), host.requests("2.0")
            wait_for(lambda: host.requests("2.0") >= new + 20)
            by_weight = (host.requests("2.0") - new) / (host.requests("1.0") - old)
            told = host.shell(metrics.removeprefix("$ ").partition("\n")[0]).stdout
            manage(switch)
            new = host.requests("2.0")
            wait_for(lambda: host.requests("2.0") >= new + 50)
            share[0] = 0.0
            manage(back)
            wait_for(lambda: host.pending("2.0") == 0)
            manage(remove)
            old = host.requests("1.0")
            wait_for(lambda: host.requests("1.0") >= old + 50)
        finally:
            ended.set()
        answers = [answer for sent in clients for answer in sent.result()]

    expected = [production.expected(version) for version in ("1.0", "2.0")]
    chosen = [[torch.allclose(torch.tensor(answer), tags, atol=1e-5) for tags in expected] for answer in answers]
    assert all(sum(one) == 1 for one in chosen)
    assert re.fullmatch(re.escape(metrics.partition("\n")[2]).replace("…", r"\S+"), told), told
    assert 0.02 < by_weight < 0.3
    for place, version in enumerate(begun):
        answered = begun[version] + sum(one[place] for one in chosen)
        wait_for(lambda: host.requests(version) == answered)  # noqa: B023 - called in its own round


def test_a_version_that_cannot_load_leaves_the_old_one_alone(production: Production) -> None:
    host = production.host
    store = host.home / "srv" / "model_store"
    with zipfile.ZipFile(store / "tagger-2.0.mar") as good, zipfile.ZipFile(store / "bad.mar", "w") as bad:
        for name in good.namelist():
            bad.writestr(name, good.read(name) + b"!" * (name == "weights.pt"))
    register = "manage -X POST 'http://127.0.0.1:8081/models?url={}&synchronous=true'"

    told = json.loads(host.shell(register.format("bad.mar")).stdout)
    elsewhere = json.loads(host.shell(register.format(f"file://{store}/tagger-2.0.mar")).stdout)

    assert (told["code"], f"`{told['message']}`" in TEXT) == (500, True)
    assert "does not match any allowed URL(s)" in elsewhere["message"]
    assert_close(host.tags("/predictions/tagger"), production.expected("1.0"))


def test_the_memory_of_each_worker_is_shown(production: Production) -> None:
    (command,) = blocks("bash", "Memory")
    shown = production.host.shell(command).stdout

    assert len(re.findall(r"^Rss: +\d+ kB$", shown, re.MULTILINE)) >= 1
    assert len(re.findall(r"^Private_Dirty: +\d+ kB$", shown, re.MULTILINE)) >= 1
    assert sys.platform == "linux"
