"""Every file of examples/production is as docs/production.md says; `e2e/test_production.py` serves."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import ts
import yaml
from packaging.requirements import Requirement
from shown import blocks, commands, section

from torchserve_neuron_lstm.backends.registry import get_backend
from torchserve_neuron_lstm.handlers.torchserve_messages import parse_properties

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples" / "production"
TEXT = (ROOT / "docs" / "production.md").read_text(encoding="utf-8")
PROPERTIES = parse_properties((FOLDER / "config.properties").read_text())
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "grafana.json").read_text())
DOCKERFILE = (FOLDER / "Dockerfile").read_text()
UNIT = FOLDER / "torchserve.service"
NOT_BUILT = "not built here: no Docker on the machine of the tests"


def unit(text: str) -> dict[str, dict[str, list[str]]]:
    """The values of each key by section: systemd allows a key several times."""
    sections: dict[str, dict[str, list[str]]] = {}
    for line in text.splitlines():
        if found := re.fullmatch(r"\[(\w+)\]", line):
            sections[found[1]] = {}
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            sections[list(sections)[-1]].setdefault(key, []).append(value)
    return sections


def instructions(name: str) -> list[str]:
    return re.findall(rf"^{name} (.*)$", DOCKERFILE, re.MULTILINE)


def port(setting: str) -> str:
    return PROPERTIES[setting].rpartition(":")[2]


def metric_dimensions() -> dict[str, set[str]]:
    """The dimensions of each metric that config/metrics.yaml declares, by its names in Prometheus."""
    declared = yaml.safe_load((ROOT / "config" / "metrics.yaml").read_text())
    found: dict[str, set[str]] = {}
    for group, added in (("ts_metrics", set()), ("model_metrics", {"Hostname"})):
        for kind, metrics in declared[group].items():
            for metric in metrics:
                own = {*metric["dimensions"], *added}
                for suffix in ("_sum", "_count", "_bucket") if kind == "histogram" else ("",):
                    found[metric["name"] + suffix] = own | ({"le"} if suffix == "_bucket" else set())
    return found


def test_the_files_are_those_of_the_table() -> None:
    """A file that no test reads would be in neither."""
    listed = re.findall(r"^\| `([\w.]+)` \|", (FOLDER / "README.md").read_text(), re.MULTILINE)

    assert sorted(listed) == ["Dockerfile", "config.properties", "grafana.json", "prometheus.yml", "torchserve.service"]
    assert {path.name for path in FOLDER.iterdir()} == {*listed, "README.md"}


def test_the_page_shows_the_settings_of_the_files() -> None:
    assert blocks(TEXT, "properties") == [(FOLDER / "config.properties").read_text()]
    assert blocks(TEXT, "yaml") == [(FOLDER / "prometheus.yml").read_text()]


def test_every_setting_is_one_that_torchserve_reads() -> None:
    """TorchServe ignores a key with a typing error; its names are constants of its code."""
    package = Path(ts.__path__[0])
    with zipfile.ZipFile(package / "frontend" / "model-server.jar") as jar:
        known = jar.read("org/pytorch/serve/util/ConfigManager.class")
    read_by_python = re.findall(r'props\.get\("(\w+)"', (package / "model_server.py").read_text())

    assert [key for key in PROPERTIES if key.encode() not in known and key not in read_by_python] == []


def test_no_port_is_open_to_other_hosts_and_tokens_are_on() -> None:
    addresses = {key: value for key, value in PROPERTIES.items() if key.endswith("_address")}

    assert len(addresses) == 5
    assert all("127.0.0.1" in address for address in addresses.values())
    assert PROPERTIES["disable_token_authorization"] == "false"
    assert not re.fullmatch(PROPERTIES["allowed_urls"], "file:///srv/model_store/tagger-1.0.mar")
    assert PROPERTIES["metrics_mode"] == "prometheus"


def test_the_queue_is_that_of_the_rule() -> None:
    found = re.search(r"with (\d+) requests per second and\s+clients that wait (\d+) s needs (\d+)", TEXT)

    assert found is not None
    assert int(found[1]) * int(found[2]) == int(found[3]) == int(PROPERTIES["job_queue_size"])


def test_prometheus_reads_the_metrics_port() -> None:
    (job,) = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]

    assert job["metrics_path"] == "/metrics"
    assert job["static_configs"] == [{"targets": [PROPERTIES["metrics_address"].removeprefix("http://")]}]


def expressions() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def test_the_dashboard_asks_for_metrics_and_labels_that_there_are() -> None:
    known = metric_dimensions()
    words = re.compile(r"sum by \(([\w, ]+)\) \((?:rate|increase)\((\w+)(\{[^}]*\})?\[\$__rate_interval\]\)\)")
    for expression in expressions():
        found = words.findall(expression)
        assert len(found) == len(re.findall(r"rate\(|increase\(", expression)), expression
        for grouping, metric, selector in found:
            labels = {*grouping.split(", "), *re.findall(r"(\w+)=~", selector)}
            dimensions = known[metric] | ({"Hostname"} if metric.startswith("Requests") else set())
            assert labels <= dimensions, expression

    text = " ".join(expressions())
    for wanted in ("requests_total", "rejected_total", "padded_timesteps", "engine_seconds", "batch_seconds_count"):
        assert f"neuron_lstm_{wanted}" in text
    assert "neuron_lstm_sessions_expired_total" in text
    assert "label_values(neuron_lstm_requests_total, ModelName)" in json.dumps(DASHBOARD["templating"])


def test_the_padding_is_zero_before_the_first_padded_timestep() -> None:
    """A counter that was never increased has no series: the query has a value all the same."""
    (share,) = (expression for expression in expressions() if "padded" in expression)

    assert "neuron_lstm_padded" in share.partition(" or 0 * ")[0]


def test_the_unit_runs_the_command_with_the_folders_of_the_page() -> None:
    service = unit(UNIT.read_text())["Service"]
    folders = re.findall(r"`(/[\w/]+)`", section(TEXT, "The host").partition("| folder |")[2])
    made = {f"/run/{name}" for name in service["RuntimeDirectory"]}
    made |= {f"/var/log/{name}" for name in service["LogsDirectory"]}
    made |= {f"/var/lib/{name}" for name in service["StateDirectory"]}
    (start,) = service["ExecStart"]
    environment = dict(word.split("=", 1) for line in service["Environment"] for word in line.split())

    assert service["Restart"] == ["always"]
    assert "--foreground" in start.split()
    assert service["WorkingDirectory"] == ["/run/torchserve"]
    assert {environment["LOG_LOCATION"], environment["METRICS_LOCATION"]} == {"/var/log/torchserve"}
    named = {"/opt/torchserve", "/etc/torchserve", PROPERTIES["model_store"]}
    assert start.startswith("/opt/torchserve/bin/torchserve ")
    assert start.endswith(" /etc/torchserve/config.properties")
    assert set(folders) == named | made
    for sandbox in ("NoNewPrivileges", "PrivateTmp", "ProtectSystem", "ProtectHome", "SystemCallFilter"):
        assert sandbox in service


def test_the_optional_check_of_signatures_is_the_command_of_security_md() -> None:
    (line,) = re.findall(r"^#ExecStartPre=(.*)$", UNIT.read_text(), re.MULTILINE)
    archive = PROPERTIES["load_models"].partition("=")[2]
    security = (ROOT / "SECURITY.md").read_text()

    assert line.endswith(f" --trusted-keys /etc/torchserve/trusted.pem {PROPERTIES['model_store']}/{archive}")
    assert line.partition(" --")[0] in security


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("optional", [False, True], ids=["as it is", "every optional line"])
def test_systemd_finds_no_error_in_the_unit(tmp_path: Path, optional: bool) -> None:
    """The programs are others here: systemd looks whether they exist."""
    text = UNIT.read_text()
    if optional:
        text = re.sub(r"^#(?=[A-Z]\w+=)", "", text, flags=re.MULTILINE)
        assert "\nExecStartPre=" in text
    text = re.sub(r"^(Exec\w+)=\S+", rf"\1={sys.executable}", text, flags=re.MULTILINE)
    (tmp_path / UNIT.name).write_text(text)

    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / UNIT.name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert UNIT.name not in done.stderr + done.stdout
    assert done.returncode == 0, done.stderr


def test_the_image_has_the_archive_where_the_settings_look_for_it() -> None:
    archive = PROPERTIES["load_models"].partition("=")[2]
    copied = {target: words for *words, target in (line.split() for line in instructions("COPY"))}
    (entry,) = instructions("ENTRYPOINT")
    (start,) = unit(UNIT.read_text())["Service"]["ExecStart"]

    assert instructions("FROM") == ["pytorch/torchserve:latest-cpu"]
    assert copied == {
        "/etc/torchserve/": ["config.properties", "metrics.yaml"],
        f"{PROPERTIES['model_store']}/": [archive],
    }
    assert json.loads(entry) == ["torchserve", *start.split()[1:]]
    assert instructions("STOPSIGNAL") == ["SIGINT"]
    assert {f"`{archive}`", "`metrics.yaml`"} <= set(re.findall(r"`[^`]+`", section(TEXT, "Docker")))


def test_the_image_opens_the_ports_that_are_published_and_no_other(tmp_path: Path) -> None:
    (edit,) = (line for line in instructions("RUN") if line.startswith("sed "))
    copy = tmp_path / "config.properties"
    shutil.copy(FOLDER / "config.properties", copy)
    subprocess.run(shlex.split(edit.replace("/etc/torchserve/config.properties", str(copy))), check=True)

    changed = parse_properties(copy.read_text())
    opened = {key for key, value in changed.items() if value != PROPERTIES[key]}
    (run,) = (words for words in commands(TEXT, "docker") if words[1] == "run")
    published = [after for before, after in pairwise(run) if before == "-p"]

    assert opened == {"inference_address", "metrics_address"}
    assert all(changed[key].startswith("http://0.0.0.0:") for key in opened)
    assert published == [f"127.0.0.1:{port(key)}:{port(key)}" for key in ("inference_address", "metrics_address")]


def test_the_commands_of_docker_name_one_image_and_one_container() -> None:
    build, run, execute, stop = commands(TEXT, "docker")

    assert build[1:] == ["build", "-t", run[-1], "."]
    assert run[run.index("--name") + 1] == execute[2] == stop[2]
    for text in (section(TEXT, "Docker"), DOCKERFILE, (FOLDER / "README.md").read_text()):
        assert NOT_BUILT.lower() in text.lower()


def test_the_pip_lines_name_what_the_extra_does() -> None:
    """PyTorch's CPU index for torch; PyYAML, which TorchServe does not declare; the engine's package."""
    wanted = [Requirement(text) for text in metadata.requires("torchserve-neuron-lstm") or ()]
    serve = [str(one).partition(";")[0].strip() for one in wanted if 'extra == "serve"' in str(one.marker)]
    torch_line, serve_line, engine_line = commands(TEXT, "/opt/torchserve/bin/pip")
    declared = {Requirement(text).name.lower() for text in metadata.requires("torchserve") or ()}

    assert torch_line[1:] == ["install", "--index-url", "https://download.pytorch.org/whl/cpu", "torch"]
    assert {str(Requirement(word)) for word in serve_line[2:]} == {*serve, "pyyaml"}
    assert "pyyaml" not in declared
    assert engine_line[2:] == ["onnxruntime"]
    for name in ("native", "eager", "onnxruntime", "openvino"):
        needed = {need.distribution for need in get_backend(name).requirements()} - {"torch"}
        assert needed == ({name} if name in ("onnxruntime", "openvino") else set())


def test_every_command_is_valid_bash() -> None:
    for block in blocks(TEXT, "bash"):
        subprocess.run(["bash", "-n", "-c", block], check=True)
