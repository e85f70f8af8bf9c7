import subprocess
import sys
from pathlib import Path

import pytest

from torchserve_neuron_lstm.backends import registry
from torchserve_neuron_lstm.backends.interface import LoadError


@pytest.fixture
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution with two entry points that are no backend."""
    info = tmp_path / "third_party-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{registry.ENTRY_POINT_GROUP}]\nbroken = pathlib:Missing\nfolder = pathlib:Path\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


def test_ours_are_found_by_name() -> None:
    assert set(registry.backend_names()) >= {"native", "inductor", "onnxruntime", "eager"}
    for name in ("native", "inductor", "onnxruntime", "eager"):
        assert name == registry.get_backend(name).name


def test_an_unknown_name_is_answered_by_what_there_is() -> None:
    with pytest.raises(LoadError, match=r"no backend 'tensorrt'\. Available: native, inductor, .*, eager.*entry point"):
        registry.get_backend("tensorrt")


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("broken", r"'broken' of third-party cannot be imported: AttributeError"),
        (
            "folder",
            r"'folder' of third-party is a \w+, not a subclass of torchserve_neuron_lstm\.backends\.interface\.",
        ),
    ],
)
def test_a_broken_distribution_is_named(name: str, message: str) -> None:
    with pytest.raises(LoadError, match=message):
        registry.get_backend(name)


def test_auto_tries_the_engines_in_the_order_of_its_table() -> None:
    assert registry.auto_engines("float32") == ("native", "onnxruntime", "cuda")
    assert registry.auto_engines("bfloat16") == ("native", "onnxruntime", "openvino", "cuda")
    assert registry.auto_engines("float16") == ("native", "onnxruntime", "cuda")
    assert registry.auto_engines("fallback") == ("eager",)
    assert registry.auto_engines("trace") == ("inductor", "onnxruntime", "eager")


@pytest.mark.parametrize("names", registry._AUTO.values(), ids=registry._AUTO)
def test_auto_tries_no_engine_twice(names: tuple[str, ...]) -> None:
    assert len(set(names)) == len(names)
    assert set(names) <= set(registry.ENGINES)


@pytest.mark.ci
def test_asking_for_one_imports_no_other() -> None:
    """The registry reads an engine's file only on request: a host does not have the others."""
    code = (
        "import sys; from torchserve_neuron_lstm.backends.registry import get_backend; "
        "before = [name for name in sys.modules if name.startswith('torchserve_neuron_lstm.backends.')]; "
        "get_backend('eager'); print(sorted(before), [name for name in sys.modules if name.endswith('.onnxruntime')])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert printed == ("['torchserve_neuron_lstm.backends.interface', 'torchserve_neuron_lstm.backends.registry'] []\n")
