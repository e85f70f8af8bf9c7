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


def test_folders_that_are_not_there_yet_break_nothing(tmp_path: Path) -> None:
    assert violations(tree(tmp_path, {"bucketing/__init__.py": ""})) == []


BROKEN = [
    ("bucketing/a.py", "from ..config import manifest", "bucketing must not import config.manifest: it may"),
    ("bucketing/a.py", "def f():\n    from .. import handlers", "bucketing must not import handlers"),
    ("bucketing/a.py", "import torchserve_neuron_lstm.backends.interface", "bucketing must not import backends"),
    ("bucketing/a.py", "import torch", "the standard library only, here"),
    ("bucketing/a.py", "def f():\n    from torch import nn", "the standard library only, here"),
    ("bucketing/planner.py", "import numpy", "numpy cannot be carried in an archive"),
    ("bucketing/padding.py", "import numpy", "numpy cannot be carried in an archive"),
    ("config/a.py", "from ..handlers.formats import custom", "config must not import handlers.formats.custom: it"),
    ("config/a.py", "from ..backends.interface import Backend", "config must not import backends.interface.Backend"),
    ("config/manifest.py", "import torch", "the standard library only, here"),
    ("config/manifest.py", "def f():\n    import pydantic", "pydantic cannot be carried in an archive"),
    ("config/schema.py", "import yaml", "yaml may be imported in config/yaml_text.py only"),
    ("backends/a.py", "from ..config.manifest import Manifest", "backends must not import config.manifest.Manifest"),
    ("backends/a.py", "from ..handlers.runtime import loader", "backends must not import handlers.runtime.loader"),
    ("backends/onnxruntime.py", "import onnxruntime", "onnxruntime is an engine: import it inside a function"),
    ("backends/onnxruntime.py", "import numpy", "numpy cannot be carried in an archive"),
    ("backends/inductor.py", "from torch._inductor import aoti", "torch._inductor.aoti is an engine"),
    ("backends/eager.py", "def f():\n    import onnxruntime", "onnxruntime cannot be carried in an archive"),
    ("backends/eager.py", "def f():\n    import numpy", "numpy cannot be carried in an archive"),
    ("handlers/a.py", "from ..archiver_ext import cli", "handlers must not import archiver_ext.cli: it may"),
    ("handlers/a.py", "from ..config import load", "handlers must not import config.load"),
    ("handlers/a.py", "from ..config import manifest, schema", "handlers must not import config.schema"),
    ("handlers/a.py", "import rich.table", "rich cannot be carried in an archive"),
    ("handlers/a.py", "import importlib\nimportlib.import_module('numpy')", "numpy cannot be carried in an archive"),
    ("handlers/a.py", "from ..hosts import rest", "handlers must not import hosts.rest"),
    ("handlers/a.py", "import ray", "ray is for hosts/ only"),
    ("archiver_ext/a.py", "def f():\n    from starlette.requests import Request", "starlette is for hosts/ only"),
    ("handlers/a.py", "import orjson", "orjson cannot be carried in an archive"),
    ("handlers/a.py", "try:\n    import orjson\nfinally:\n    pass", "orjson cannot be carried in an archive"),
    ("handlers/formats/custom.py", "from ts.utils.util import x", "ts may be imported in handlers/torchserve.py only"),
    ("handlers/formats/custom.py", "def f():\n    import yaml", "yaml may be imported in config/yaml_text.py only"),
    ("archiver_ext/a.py", "from ..handlers.torchserve import H", "archiver_ext must not import handlers.torchserve.H"),
    ("archiver_ext/a.py", "from ..handlers import torchserve", "archiver_ext must not import handlers.torchserve"),
    ("archiver_ext/b/a.py", "from ...handlers import torchserve", "archiver_ext must not import handlers.torchserve"),
    ("archiver_ext/a.py", "from ..handlers.formats import v2", "archiver_ext must not import handlers.formats.v2"),
    ("archiver_ext/a.py", "import ts", "ts may be imported in handlers/torchserve.py only"),
    ("archiver_ext/a.py", "class C:\n    import onnxruntime", "onnxruntime is an engine: import it inside a function"),
    ("sessions/a.py", "from ..config import manifest", "sessions must not import config.manifest: it may import"),
    ("sessions/sqlite/store.py", "import torch", "the standard library only, here"),
    ("sessions/redis/store.py", "import redis", "redis is an engine: import it inside a function"),
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
    ("bucketing/execute.py", "import torch"),
    ("config/load.py", "from ..bucketing import grid"),
    ("config/yaml_text.py", "import yaml"),
    ("config/schema.py", "import pydantic"),
    ("backends/onnxruntime.py", "def f():\n    import onnxruntime"),
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
