"""ARCHITECTURE.md's import rules hold, and violations of each are detected."""

from __future__ import annotations

from pathlib import Path

import pytest
from import_rules import FOLDERS, Import, imports_of, source_files, violations

ROOT = Path(__file__).parents[1]


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return root


def test_the_package_keeps_its_import_rules() -> None:
    assert violations(ROOT) == []


def test_the_rules_are_read_off_every_source_folder() -> None:
    links = {link.name for link in (ROOT / "src" / "torchserve_neuron_lstm").iterdir() if link.is_dir()} - {
        "__pycache__"
    }
    files = {path.relative_to(ROOT).as_posix() for path in source_files(ROOT)}

    assert set(FOLDERS) == links
    assert {"bucketing/shapes.py", "backends/interface.py", "config/manifest.py"} <= files
    assert "bucketing.shapes.Bucket" in {found.module for found in imports_of(ROOT / "config" / "manifest.py", ROOT)}


BROKEN = [
    ("bucketing/a.py", "from ..config import manifest", "bucketing must not import config.manifest: it may"),
    ("bucketing/a.py", "import torchserve_neuron_lstm.backends.interface", "bucketing must not import backends"),
    ("bucketing/a.py", "import torch", "the standard library only, here"),
    ("bucketing/padding.py", "import numpy", "numpy cannot be carried in an archive"),
    ("config/a.py", "from ..handlers.formats import custom", "config must not import handlers.formats.custom: it"),
    ("config/manifest.py", "def f():\n    import pydantic", "pydantic cannot be carried in an archive"),
    ("config/schema.py", "import yaml", "yaml may be imported in config/yaml_text.py only"),
    ("backends/onnxruntime.py", "import onnxruntime", "onnxruntime is an engine: import it inside a function"),
    ("backends/inductor.py", "from torch._inductor import aoti", "torch._inductor.aoti is an engine"),
    ("backends/eager.py", "def f():\n    import onnxruntime", "onnxruntime cannot be carried in an archive"),
    ("handlers/a.py", "from ..config import manifest, schema", "handlers must not import config.schema"),
    ("handlers/a.py", "import importlib\nimportlib.import_module('numpy')", "numpy cannot be carried in an archive"),
    ("archiver_ext/a.py", "def f():\n    from starlette.requests import Request", "starlette is for hosts/ only"),
    ("handlers/a.py", "import orjson", "orjson cannot be carried in an archive"),
    ("handlers/a.py", "try:\n    import orjson\nfinally:\n    pass", "orjson cannot be carried in an archive"),
    ("handlers/formats/custom.py", "from ts.utils.util import x", "ts may be imported in handlers/torchserve.py only"),
    ("archiver_ext/a.py", "from ..handlers.torchserve import H", "archiver_ext must not import handlers.torchserve.H"),
    ("archiver_ext/b/a.py", "from ...handlers import torchserve", "archiver_ext must not import handlers.torchserve"),
    ("archiver_ext/a.py", "class C:\n    import onnxruntime", "onnxruntime is an engine: import it inside a function"),
    ("sessions/sqlite/store.py", "def f():\n    import redis", "redis cannot be carried in an archive"),
    ("handlers/a.py", "import model_archiver", "model_archiver may be imported in archiver_ext/ only"),
]


@pytest.mark.parametrize(("file", "source", "message"), BROKEN, ids=[f"{file}: {source}" for file, source, _ in BROKEN])
def test_a_broken_rule_is_found_with_its_place(tmp_path: Path, file: str, source: str, message: str) -> None:
    line = max(number for number, text in enumerate(source.split("\n"), 1) if "import" in text)

    found = violations(tree(tmp_path, {file: source}))

    assert len(found) == 1
    assert found[0].startswith(f"{file}:{line}: {message}")


def test_the_archiver_is_imported_in_one_file(tmp_path: Path) -> None:
    """It may be any file of the folder, but only one."""
    files = {"archiver_ext/a.py": "import model_archiver", "archiver_ext/b.py": "def f():\n    import model_archiver.x"}

    assert violations(tree(tmp_path, files)) == [
        "archiver_ext/b.py: model_archiver is already imported in archiver_ext/a.py"
    ]


KEPT = [
    ("bucketing/a.py", "from . import grid\nfrom .grid import Bucket\nimport bisect, json.decoder"),
    ("config/yaml_text.py", "import yaml"),
    ("backends/onnx_export.py", "def f():\n    import onnx\n    from onnxscript import ir"),
    ("backends/inductor.py", "import torch.export\ndef f():\n    import torch._inductor.package"),
    ("handlers/torchserve.py", "import ts\nfrom ..config.manifest import Manifest\nfrom ..backends import registry"),
    ("handlers/neuron_lstm.py", "from torchserve_neuron_lstm.handlers.torchserve import Handler"),
    ("handlers/a.py", "try:\n    import orjson\nexcept ImportError:\n    orjson = None"),
    ("hosts/a.py", "import ray\nfrom starlette.requests import Request\nfrom ..handlers.open_service import Host"),
    ("handlers/a.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import numpy"),
    (
        "archiver_ext/a.py",
        "import model_archiver, rich, numpy\nfrom ..handlers.runtime import loader\nfrom ..config import load",
    ),
    ("archiver_ext/b/a.py", "from .. import program\nfrom ...config.schema import ServingConfig"),
]


@pytest.mark.parametrize(("file", "source"), KEPT, ids=[f"{file}: {source}" for file, source in KEPT])
def test_what_the_rules_allow_is_left_alone(tmp_path: Path, file: str, source: str) -> None:
    assert violations(tree(tmp_path, {file: source})) == []


def test_an_import_is_seen_with_what_stands_around_it(tmp_path: Path) -> None:
    source = "import a\ndef f():\n    try:\n        import b\n    except ImportError:\n        import c\n"

    found = imports_of(tree(tmp_path, {"config/x.py": source}) / "config" / "x.py", tmp_path)

    assert found == [
        Import("config/x.py", 1, "a", ours=False),
        Import("config/x.py", 4, "b", ours=False, in_function=True, guarded=True),
        Import("config/x.py", 6, "c", ours=False, in_function=True),
    ]
