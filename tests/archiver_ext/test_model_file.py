from __future__ import annotations

import sys
from pathlib import Path

import pytest

from torchserve_neuron_lstm.archiver_ext.errors import PackagingError
from torchserve_neuron_lstm.archiver_ext.model_class import importable, load_class

from .model_files import ONE, write


def refusal(folder: Path, model_file: Path) -> str:
    with importable(folder), pytest.raises(PackagingError) as refused:
        load_class(model_file)
    return str(refused.value)


def test_a_model_imports_the_other_files_of_its_archive_and_leaves_no_trace(tmp_path: Path) -> None:
    write(tmp_path, "import torch\nclass Block(torch.nn.Linear):\n    pass\n", "blocks_of_mine.py")
    file = write(
        tmp_path,
        "import torch\nfrom blocks_of_mine import Block\nclass Whole(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.linear = Block(3, 2)\n",
    )
    modules, path = set(sys.modules), list(sys.path)
    with importable(tmp_path):
        assert load_class(file).__name__ == "Whole"
        assert "blocks_of_mine" in sys.modules

    assert set(sys.modules) == modules
    assert sys.path == path
    assert not list(tmp_path.rglob("__pycache__"))


def test_a_file_that_does_not_import_says_why(tmp_path: Path) -> None:
    assert "SyntaxError" in refusal(tmp_path, write(tmp_path, "class\n"))
    text = refusal(tmp_path, write(tmp_path, "import not_there_at_all\n"))
    assert "give not_there_at_all.py with --extra-files" in text.lower()


def test_a_script_that_ends_python_is_refused(tmp_path: Path) -> None:
    """Otherwise packaging would end without an archive, without a message, and as if it had succeeded."""
    script = write(tmp_path, f"{ONE}\nimport sys\nsys.exit(0)\n")
    told = refusal(tmp_path, script)

    assert "the_model.py ends Python while it is imported (sys.exit, code 0)" in told
    assert "if __name__ == '__main__':" in told


def test_a_module_that_imports_its_contents_on_first_use_is_left_alone(tmp_path: Path) -> None:
    """Its attributes may need packages that are not installed."""
    lazy = "class Lazy(types.ModuleType):\n    def __getattr__(self, name):\n        raise ImportError(name)\n"
    entry = "sys.modules['lazy_of_mine'] = Lazy('lazy_of_mine')\n"
    file = write(tmp_path, f"import sys, types\n{lazy}{entry}{ONE}")
    with importable(tmp_path):
        assert load_class(file)

    assert sys.modules.pop("lazy_of_mine").__name__ == "lazy_of_mine"
