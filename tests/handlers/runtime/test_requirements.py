from __future__ import annotations

import pytest
import torch

from torchserve_neuron_lstm.handlers.runtime import requirements
from torchserve_neuron_lstm.handlers.runtime.requirements import check_requirements, installed_version


@pytest.mark.parametrize(
    ("backend", "distribution", "packaged", "here", "runs"),
    [
        ("inductor", "torch", "2.13.0", "2.13.1+cpu", True),
        ("inductor", "torch", "2.13.1", "2.13.0", True),
        ("inductor", "torch", "2.13.0", "2.14.0", False),
        ("inductor", "torch", "2.13.0+cpu", "2.12.9", False),
        ("eager", "torch", "2.13.0", "2.14.0.dev20260101", True),
        ("eager", "torch", "2.13.0", "2.12.0", False),
        ("onnxruntime", "onnxruntime", "1.31.1", "1.31.1", True),
        ("onnxruntime", "onnxruntime", "1.9.0", "1.31.1", True),
        ("onnxruntime", "onnxruntime", "1.31", "1.31.0", True),
        ("onnxruntime", "onnxruntime", "1.31.1", "1.30.0", False),
    ],
)
def test_another_version_than_packaged_runs_or_is_refused_with_the_way_out(
    backend: str, distribution: str, packaged: str, here: str, runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled code needs torch's minor version; others need at least the version they require."""
    monkeypatch.setattr(requirements, "installed_version", lambda *_: here)
    needs = [(distribution, distribution, packaged)]
    if runs:
        check_requirements(needs, backend)
        return
    with pytest.raises(RuntimeError) as refused:
        check_requirements(needs, backend)
    assert f"this archive needs {distribution} " in str(refused.value)
    assert f"; version {here} is installed, which cannot run it" in str(refused.value)
    assert f'pip install "{distribution}' in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_torch_newer_than_those_that_were_run_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It serves all the same."""
    for here in ("2.15.9", "97.1.0", "97.1.0"):
        monkeypatch.setattr(requirements, "installed_version", lambda *_, here=here: here)
        check_requirements([("torch", "torch", "2.1.0")], "eager")

    newest = "torch 97.1.0 is newer than the newest release that was tested, 2.15"
    assert [record.message for record in caplog.records] == [newest]


def test_a_module_that_another_distribution_brings_is_found() -> None:
    """The distribution onnxruntime-gpu contains onnxruntime."""
    assert installed_version("torch", "torch") is not None
    assert installed_version("torch-under-another-name", "torch") == torch.__version__
    assert installed_version("no-such-thing", "no_such_thing") is None
    assert installed_version("no-such-thing", "textwrap") is None
