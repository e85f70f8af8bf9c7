from pathlib import Path

import pytest

from torchserve_neuron_lstm.archiver_ext.commands.tuning.target import UNKNOWN, EnginePadding, padding_of_config
from torchserve_neuron_lstm.config.load import load_config

CONFIG = """\
neuron_lstm:
  inputs: {ids: {dtype: int64, shape: [batch, time]}}
  buckets: {batch: [1, 8], length: [16, 32]}
"""


def configured(folder: Path, *lines: str) -> EnginePadding:
    (folder / "model-config.yaml").write_text(CONFIG + "".join(f"  {line}\n" for line in lines))
    return padding_of_config(load_config(folder / "model-config.yaml"))


@pytest.mark.parametrize(
    ("backend", "padding"),
    [("native", "none"), ("onnxruntime", "call"), ("eager", "call"), ("inductor", "bucket"), ("openvino", "bucket")],
)
def test_an_engine_pads_as_it_declares(tmp_path: Path, backend: str, padding: str) -> None:
    found = configured(tmp_path, f"backend: {backend}")

    assert (found.engine, found.padding) == (backend, padding)
    assert found.lengths_matter == (padding == "bucket")
    assert bool(found.detail) == (padding != "bucket")


def test_sessions_run_in_chunks(tmp_path: Path) -> None:
    """No engine stops each row of a chunk."""
    assert configured(tmp_path, "backend: native", "streaming: {}").padding == "call"


def test_a_bucket_selector_pads_to_its_buckets(tmp_path: Path) -> None:
    (tmp_path / "model-config.yaml").write_text(
        CONFIG.replace("length: [16, 32]}", "length: [16, 32], kernel: 'mine:choose'}") + "  backend: native\n"
    )

    assert padding_of_config(load_config(tmp_path / "model-config.yaml")).padding == "bucket"


def test_packaging_may_choose_an_engine_with_dynamic_shapes(tmp_path: Path) -> None:
    assert configured(tmp_path) == configured(tmp_path, "backend: {auto: {try: [inductor, eager]}}") == UNKNOWN


def test_an_engine_that_is_not_installed_is_told(tmp_path: Path) -> None:
    found = configured(tmp_path, "backend: elsewhere")

    assert (found.engine, found.padding) == ("elsewhere", "bucket")
    assert "elsewhere is not installed here" in found.detail
