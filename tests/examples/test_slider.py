"""`examples/streaming/slider`: its program, and its page in a real browser, while the server's worker is killed."""

import functools
import http.server
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from archiving import imported
from builtin_server import Server, serving
from rest import get
from torchserve_process import free_ports
from waiting import wait_for
from websockets.sync.client import connect

pytestmark = [pytest.mark.ci, pytest.mark.timeout(300)]
FOLDER = Path(__file__).parents[2] / "examples" / "streaming" / "slider"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def slider(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive, made as the README says."""
    folder = Path(shutil.copytree(FOLDER, tmp_path_factory.mktemp("slider") / "work"))
    readme = (FOLDER.parent / "README.md").read_text()
    (command,) = (line for line in readme.splitlines() if line.startswith("neuron-lstm archive --model-name slider"))
    for words in (["model.py"], ["-m", "torchserve_neuron_lstm.archiver_ext.cli", *command.split()[1:]]):
        subprocess.run([sys.executable, *words], cwd=folder, check=True)
    return folder / "slider.mar"


def kill_worker(server: Server) -> None:
    children = psutil.Process(server.command.process.pid).children()
    next(child for child in children if "spawn_main" in " ".join(child.cmdline())).kill()


def test_the_program_gets_every_level_once_though_the_worker_is_killed(
    slider: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_LSTM_SESSIONS", str(tmp_path / "sessions"))
    client, model = imported("slider_client", FOLDER / "client.py"), imported("slider_model", FOLDER / "model.py")
    samples = [[0.5], [0.5], [1.0], [1.0], [-1.0]]
    with serving(tmp_path, slider) as server:
        found = []
        for levels in client.levels([[one] for one in samples], f"ws://127.0.0.1:{server.http}/models/slider/stream"):
            found += levels
            if len(found) == 2:
                kill_worker(server)
    expected = model.Needle()(model.torch.tensor([samples]))[0].tolist()
    assert [one for (one,) in found] == pytest.approx([one for (one,) in expected], abs=1e-6)


@contextmanager
def page(folder: Path, port: int) -> Iterator[Callable[[str], Any]]:
    """Show the example's page in a headless Chromium; the function evaluates JavaScript in it."""

    class Files(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

    files = http.server.ThreadingHTTPServer(("127.0.0.1", port), functools.partial(Files, directory=str(FOLDER)))
    threading.Thread(target=files.serve_forever, daemon=True).start()
    options = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --remote-debugging-port=0 about:blank"
    browser = subprocess.Popen(
        [str(CHROMIUM), f"--user-data-dir={folder}", *options.split()], stderr=subprocess.DEVNULL
    )
    try:
        told = folder / "DevToolsActivePort"
        wait_for(lambda: told.exists() and len(told.read_text().split()) == 2)
        (tab,) = (one for one in get(int(told.read_text().split()[0]), "/json/list").json if one["type"] == "page")
        with connect(tab["webSocketDebuggerUrl"], proxy=None, max_size=None) as devtools:

            def evaluate(script: str) -> Any:
                asked = {"id": 1, "method": "Runtime.evaluate", "params": {"expression": script}}
                devtools.send(json.dumps(asked))
                return json.loads(devtools.recv(timeout=60))["result"]["result"].get("value")

            yield evaluate
    finally:
        browser.kill()
        browser.wait()
        files.shutdown()
        files.server_close()


@pytest.mark.skipif(CHROMIUM is None, reason="not run: it needs Debian's package chromium, or another Chromium")
def test_a_page_in_a_browser_follows_its_slider_though_the_worker_is_killed(
    slider: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_LSTM_SESSIONS", str(tmp_path / "sessions"))
    (port,) = free_ports(1)
    origin = f"http://127.0.0.1:{port}"
    with serving(tmp_path, slider, "--allow-origin", origin) as server, page(tmp_path / "browser", port) as evaluate:
        evaluate(f"location.href = '{origin}/index.html?server=127.0.0.1:{server.http}'")

        def shown() -> tuple[float, int]:
            words = str(evaluate("document.getElementById('told')?.value")).split()
            return (float(words[0]), int(words[2])) if len(words) == 4 else (0.0, 0)

        wait_for(lambda: shown()[1] > 0)
        evaluate("document.getElementById('signal').value = 1")
        wait_for(lambda: shown()[0] > 0.5)
        kill_worker(server)
        step = shown()[1]
        wait_for(lambda: shown()[1] > step + 50)
        assert shown()[0] > 0.5  # it went on where it was
