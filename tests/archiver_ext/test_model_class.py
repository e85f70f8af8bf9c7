import inspect
import re
import sys
from pathlib import Path

import pytest
import torch

from torchserve_neuron_lstm.archiver_ext.errors import PackagingError
from torchserve_neuron_lstm.archiver_ext.model_class import importable, load_class, outermost_class

from .model_files import FUNCTION, ONE, TWO, write


def refusal(folder: Path, model_file: Path, name: str | None = None) -> str:
    with importable(folder), pytest.raises(PackagingError) as refused:
        load_class(model_file, name)
    return str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TWO, ["defines 2 torch.nn.Module classes (One, Two)", "`model: {class: NAME}`"]),
        (FUNCTION.replace("_twice", "twice"), ["2 functions (twice, func)", "underscore"]),
        ("from torch.nn import LSTM\n", ["defines no torch.nn.Module class"]),
        ("class\n", ["SyntaxError"]),
        ("import not_there_at_all\n", ["ive not_there_at_all.py with --extra-files"]),
    ],
    ids=["two classes", "two functions", "no class", "no Python", "a missing import"],
)
def test_a_file_that_is_not_one_model_is_refused(tmp_path: Path, text: str, said: list[str]) -> None:
    told = refusal(tmp_path, write(tmp_path, text))

    assert all(one in told for one in said)


def test_a_named_class_is_the_model_and_an_imported_one_must_be_named(tmp_path: Path) -> None:
    file = write(tmp_path, TWO)
    other = write(tmp_path, "from the_model import One\n", "other.py")
    with importable(tmp_path):
        assert load_class(file, "One").__name__ == "One"
        assert load_class(other, "One").__name__ == "One"
    assert "It imports One: give its name as `model: {class: NAME}`" in refusal(tmp_path, other)


def test_a_wrong_class_name_is_answered_with_those_of_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, f"{TWO}\nthree = 3\n")
    for name in ("Too", "three"):
        said = f"neuron_lstm.model.class: the_model.py has no torch.nn.Module class {name}: it has One, Two"
        assert said in refusal(tmp_path, file, name)


def test_the_class_that_uses_the_others_is_taken_and_told(tmp_path: Path) -> None:
    told: list[str] = []
    user = (
        "class Whole(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.a = One(2)\n"
    )
    with importable(tmp_path):
        assert load_class(write(tmp_path, f"{ONE}\n{user}"), None, told.append).__name__ == "Whole"
    assert told == ["the_model.py: the model is the class Whole, which uses the others (One)"]


def test_a_function_of_tensors_is_a_model_without_weights(tmp_path: Path) -> None:
    file = write(tmp_path, FUNCTION)
    with importable(tmp_path):
        model = load_class(file)()

    assert (type(model).__name__, type(model).__doc__) == ("func", "Double and add.")
    assert str(inspect.signature(model.forward)) == "(x, y)"
    assert model(torch.ones(3), torch.zeros(3)).tolist() == [2, 2, 2]


def test_a_class_is_the_model_whatever_functions_are_beside_it(tmp_path: Path) -> None:
    file = write(tmp_path, f"{FUNCTION}{ONE}")
    with importable(tmp_path):
        assert load_class(file).__name__ == "One"


BLOCK = "class Block: ...\n"


@pytest.mark.parametrize(
    ("rest", "model"),
    [
        ("class Model:\n    def __init__(self): self.block = Block()", "Model"),
        ("def make(): return Block()\nclass Model:\n    def __init__(self): self.block = make()", "Model"),
        ("KINDS = {'a': Block}\nclass Model:\n    def __init__(self, kind): self.block = KINDS[kind]()", "Model"),
        ("BLOCKS: dict = {'block': Block}\nclass Model:\n    blocks = BLOCKS", "Model"),
        ("class Model:\n    def __init__(self, block: Block): self.block = block", "Model"),
        ("class Stack:\n    block = Block()\nclass Model:\n    stack = Stack()", "Model"),
        ("class Model(Block): ...", None),  # both can be meant if the base can be served
        ("class Model: ...", None),
        ("class Model: 'like Block()'", None),
        ("class Model:\n    block = Block()\nclass Other:\n    block = Block()", None),
        ("class Model:\n    def f(self): return Other()\nclass Other:\n    def f(self): return Model()", None),
    ],
)
def test_a_class_that_uses_the_others_is_found_and_nothing_is_guessed(rest: str, model: str | None) -> None:
    served = dict.fromkeys(re.findall(r"class (\w+)", BLOCK + rest), True)
    assert outermost_class(BLOCK + rest, served) == model


def test_a_base_class_without_forward_is_used_by_its_subclass() -> None:
    assert outermost_class(f"{BLOCK}class Model(Block): ...", {"Block": False, "Model": True}) == "Model"


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


def test_a_script_that_ends_python_is_refused(tmp_path: Path) -> None:
    """Otherwise packaging would end without an archive, without a message, and as if it had succeeded."""
    told = refusal(tmp_path, write(tmp_path, f"{ONE}\nimport sys\nsys.exit(0)\n"))

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
