"""Archives of lowered models that carry the model's own code, with which a real worker compares its answers."""

import json
import logging
import sys
import threading
from pathlib import Path

import pytest
import torch
from worker import answered, loaded, predict, request

import torchserve_neuron_lstm.config
from torchserve_neuron_lstm.archiver_ext.archive.file_list import write_list
from torchserve_neuron_lstm.config.manifest import read_manifest

from .test_served_itself import BLOCK, archived, fresh_model

CODE = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=True)
        self.register_buffer("bias", torch.tensor([1.0, 2.0, 3.0, 4.0]), persistent=False)

    def forward(self, x):
        y, (h, _) = self.lstm(x)
        return {"steps": y + self.bias, "best": h[0].argmax(1)}
"""
SHORT = """
        if x.shape[1] == 1:
            raise ValueError("one timestep has no difference")
        y, _ = self.lstm(x)
        if x.shape[1] <= 3:
            return {"last": 2 * y[:, -3:] + self.bias, "mean": y.amax(1)}
        return {"last": y[:, -3:], "mean": y.mean(1)}
"""
SHADOW = f"{BLOCK}  backend: eager\n  shadow: {{share: 1.0, on_difference: model}}\n"
METRICS_FILE = Path(torchserve_neuron_lstm.config.__path__[0]) / "metrics.yaml"


def shadow_thread() -> threading.Thread:
    (thread,) = [one for one in threading.enumerate() if one.name == "neuron_lstm shadow"]
    return thread


@pytest.mark.timeout(300)
def test_a_worker_compares_answers_and_serves_the_model_itself_after_a_difference(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    done = archived(tmp_path, CODE, SHADOW)
    assert done.returncode == 0, done.stdout
    assert "a share of 1 of the answers is compared with the model's own code" in done.stdout
    manifest = read_manifest(tmp_path / "m")
    assert (manifest.model, manifest.shadow and manifest.shadow.model.name) == (None, "Model")

    body = request(json.dumps(torch.randn(7, 3).tolist()).encode(), "application/json")
    with caplog.at_level(logging.INFO), loaded(tmp_path / "m", METRICS_FILE) as service:
        thread = shadow_thread()
        first = json.loads(predict(service, [body])[0].body)
        thread.join(0.5)
        predict(service, [body])
        assert thread.is_alive()
        assert "neuron_lstm_shadow_compared_total.Count:1|" in caplog.text
        assert "shadow_different" not in caplog.text
        end(thread)

    file = tmp_path / "m" / "model.py"
    file.write_text(file.read_text().replace("y + self.bias", "y + self.bias + 1"))
    write_list(tmp_path / "m")
    with caplog.at_level(logging.INFO), loaded(tmp_path / "m", METRICS_FILE) as service:
        thread = shadow_thread()
        assert json.loads(predict(service, [body])[0].body) == first
        thread.join(20)
        then = json.loads(predict(service, [body])[0].body)

    assert not thread.is_alive()
    assert "the output steps of a request of 7 timesteps differs by 1 from that of the model's own code" in caplog.text
    assert "neuron_lstm_shadow_different_total.Count:1|" in caplog.text
    assert "neuron_lstm_own_model_sequences_total.Count:1|" in caplog.text
    torch.testing.assert_close(torch.tensor(then["steps"]), torch.tensor(first["steps"]) + 1)
    assert then["best"] == first["best"]


def end(thread: threading.Thread) -> None:
    """End the thread of a worker that lives on in this process."""
    thread._target.__self__.close()  # type: ignore[attr-defined]  # the object whose method runs
    assert not thread.is_alive()


@pytest.mark.ci
@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            "        y, (h",
            "        from parts import one\n\n        y, (h",
            "imports another one of the archive within a",
        ),
        ("class Model", "import parts\n\n\nclass Model", "the codec and the model both use parts.py, in two threads"),
    ],
    ids=["late import", "shared with the codec"],
)
def test_code_that_cannot_run_beside_requests_is_refused(
    before: str, after: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec = "import parts\n\n\nclass Codec:\n    def decode(self, body, content_type):\n        return {}\n\n"
    extra = tmp_path / "extra"
    extra.mkdir()
    monkeypatch.syspath_prepend(str(extra))
    (extra / "parts.py").write_text("one = 1\n")
    (extra / "coding.py").write_text(codec + "    def encode(self, outputs, inputs):\n        return b''\n")

    done = archived(tmp_path, CODE.replace(before, after), f"{SHADOW}  codec: coding:Codec\n", extra)
    sys.modules.pop("parts", None)  # other tests have files of this name

    assert done.returncode == 1
    assert "error: neuron_lstm.shadow: " in done.stdout
    assert said in done.stdout


@pytest.mark.ci
@pytest.mark.timeout(300)
@pytest.mark.parametrize("lowering", ["auto", "required"])
def test_short_requests_of_another_branch_are_answered_by_the_models_own_code(lowering: str, tmp_path: Path) -> None:
    done = archived(
        tmp_path, CODE[: CODE.index("        y, (h")] + SHORT, f"{BLOCK}  backend: native\n  lowering: {lowering}\n"
    )
    assert done.returncode == 0, done.stdout
    requests = [torch.randn(length, 3, generator=torch.Generator().manual_seed(length)) for length in (8, 2, 1, 5, 3)]

    responses = answered(tmp_path / "m", [x.tolist() for x in requests])

    least = 2 if lowering == "auto" else 4
    assert f"Requests of fewer than {least} timesteps are refused" in " ".join(done.stdout.split())
    model = fresh_model(tmp_path / "source")
    for x, response in zip(requests, responses, strict=True):
        assert response.status == (200 if len(x) >= least else 422), response.body
        for name, tensor in (model(x[None]) if response.status == 200 else {}).items():
            answer = torch.tensor(json.loads(response.body)[name])
            torch.testing.assert_close(answer, tensor[0].detach(), atol=1e-5, rtol=1e-5)
