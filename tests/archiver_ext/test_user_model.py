"""The user's model from its files, or the reason of a refusal with a remedy."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from torchserve_neuron_lstm.archiver_ext.errors import PackagingError
from torchserve_neuron_lstm.archiver_ext.model_file import importable, load_class
from torchserve_neuron_lstm.archiver_ext.user_model import load_model
from torchserve_neuron_lstm.config.schema import ModelArguments

ONE = """
import torch
class One(torch.nn.Module):
    def __init__(self, size, deep=False):
        super().__init__()
        self.linear = torch.nn.Linear(size, 2)
"""


def write(folder: Path, text: str, name: str = "the_model.py") -> Path:
    """Write a user's file."""
    path = folder / name
    path.write_text(text)
    return path


def saved(folder: Path, size: int = 3) -> Path:
    """Weights of `One`."""
    path = folder / "weights.pt"
    torch.save(torch.nn.ModuleDict({"linear": torch.nn.Linear(size, 2)}).state_dict(), path)
    return path


def refusal(folder: Path, model_file: Path, serialized: Path | None = None, **args: object) -> str:
    """The text of the refusal."""
    with importable(folder), pytest.raises(PackagingError) as refused:
        load_model(model_file, serialized, ModelArguments(args=args))
    return str(refused.value)


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".safetensors"])
def test_a_model_has_the_weights_of_its_file_and_is_in_eval_mode(tmp_path: Path, suffix: str) -> None:
    """Each format of a state dict fills the model that the arguments make."""
    state = torch.nn.ModuleDict({"linear": torch.nn.Linear(3, 2)}).state_dict()
    path = tmp_path / f"weights{suffix}"
    if suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path)
    with importable(tmp_path):
        model = load_model(write(tmp_path, ONE), path, ModelArguments(args={"size": 3}))

    assert not model.training
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_a_model_imports_the_other_files_of_its_archive_and_leaves_no_trace(tmp_path: Path) -> None:
    """A sibling file can be imported while packaging; no module, path entry or cache folder remains."""
    write(tmp_path, "import torch\nclass Block(torch.nn.Linear):\n    pass\n", "blocks_of_mine.py")
    file = write(
        tmp_path,
        "import torch\nfrom blocks_of_mine import Block\nclass Whole(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.linear = Block(3, 2)\n",
    )
    modules, path = set(sys.modules), list(sys.path)
    with importable(tmp_path):
        assert type(load_model(file, saved(tmp_path), ModelArguments())).__name__ == "Whole"
        assert "blocks_of_mine" in sys.modules

    assert set(sys.modules) == modules
    assert sys.path == path
    assert not list(tmp_path.rglob("__pycache__"))


def test_a_model_without_weights_needs_no_file(tmp_path: Path) -> None:
    """A model without parameters loads no weights."""
    file = write(tmp_path, "import torch\nclass Nothing(torch.nn.Module):\n    pass\n")
    with importable(tmp_path):
        assert load_model(file, None, ModelArguments()).state_dict() == {}


TWO = f"{ONE}\nclass Two(torch.nn.Linear):\n    pass\n"


def test_classes_of_which_each_can_be_the_model_are_refused_with_their_names(tmp_path: Path) -> None:
    """Imported classes do not count; the message has the key of the YAML."""
    text = refusal(tmp_path, write(tmp_path, TWO))

    assert "defines 2 torch.nn.Module classes (One, Two)" in text
    assert "`model: {class: NAME}`" in text


def test_a_named_class_is_the_model(tmp_path: Path) -> None:
    """The file may also import the class, and then needs none of its own."""
    file = write(tmp_path, TWO)
    other = write(tmp_path, "from the_model import One\n", "other.py")
    with importable(tmp_path):
        assert load_class(file, "One").__name__ == "One"
        assert load_class(other, "One").__name__ == "One"


def test_a_wrong_class_name_is_answered_with_the_closest(tmp_path: Path) -> None:
    """A name that is nothing like the others is answered with all."""
    file = write(tmp_path, f"{TWO}\nthree = 3\n")
    for name, said in [
        ("Too", "the_model.py has no class Too: did you mean Two?"),
        ("Absent", "the_model.py has no class Absent: it has One, Two"),
        ("three", "three of the_model.py is no torch.nn.Module class: it has One, Two"),
    ]:
        with importable(tmp_path), pytest.raises(PackagingError) as refused:
            load_class(file, name)
        assert f"neuron_lstm.model.class: {said}" in str(refused.value)


def test_an_imported_class_must_be_named(tmp_path: Path) -> None:
    """The message names it."""
    write(tmp_path, ONE)
    other = write(tmp_path, "from the_model import One\n", "other.py")

    assert "It imports One: give its name as `model: {class: NAME}`" in refusal(tmp_path, other)


def test_the_class_that_uses_the_others_is_taken_and_told(tmp_path: Path) -> None:
    """The sentence names the class and the others."""
    told: list[str] = []
    user = (
        "class Whole(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.a = One(2)\n"
    )
    with importable(tmp_path):
        assert load_class(write(tmp_path, f"{ONE}\n{user}"), None, told.append).__name__ == "Whole"
    assert told == ["the_model.py: the model is the class Whole, which uses the others (One)"]


def test_a_file_without_a_class_is_refused(tmp_path: Path) -> None:
    """An imported class is not the model's."""
    assert "defines no torch.nn.Module class" in refusal(tmp_path, write(tmp_path, "from torch.nn import LSTM\n"))


def test_a_file_that_does_not_import_says_why(tmp_path: Path) -> None:
    """The error is shown; for a missing module, the remedy too."""
    assert "SyntaxError" in refusal(tmp_path, write(tmp_path, "class\n"))
    text = refusal(tmp_path, write(tmp_path, "import not_there_at_all\n"))
    assert "give not_there_at_all.py with --extra-files" in text.lower()


def test_wrong_arguments_are_answered_with_the_signature(tmp_path: Path) -> None:
    """Unknown and missing arguments are both named."""
    file = write(tmp_path, ONE)
    assert "the class takes One(size, deep=False)" in refusal(tmp_path, file)
    assert "'width'" in refusal(tmp_path, file, None, size=3, width=1)


def test_a_failing_constructor_is_shown_as_called(tmp_path: Path) -> None:
    """The message has the call, and the error that it raised."""
    assert "One(size='x') fails: TypeError" in refusal(tmp_path, write(tmp_path, ONE), None, size="x")


def test_weights_that_do_not_fit_are_listed(tmp_path: Path) -> None:
    """Missing and unexpected weights, and weights of other shapes, are listed together."""
    path = tmp_path / "weights.pt"
    torch.save({"linear.weight": torch.zeros(2, 4), "other": torch.zeros(1)}, path)
    text = refusal(tmp_path, write(tmp_path, ONE), path, size=3)

    assert "missing: linear.bias [2]" in text
    assert "not in the model: other [1]" in text
    assert "linear.weight: the model has [2, 3], the file [2, 4]" in text


def test_a_model_with_weights_needs_a_file(tmp_path: Path) -> None:
    """The remedy is the call that writes one."""
    assert "torch.save(model.state_dict()" in refusal(tmp_path, write(tmp_path, ONE), None, size=3)


def test_a_pickled_module_is_refused_with_the_way_out(tmp_path: Path) -> None:
    """Only tensors are unpickled."""
    path = tmp_path / "weights.pt"
    torch.save(torch.nn.Linear(3, 2), path)

    assert "torch.save(model.state_dict()" in refusal(tmp_path, write(tmp_path, ONE), path, size=3)


def test_a_torchscript_archive_is_refused_with_the_way_out(tmp_path: Path) -> None:
    """A scripted module holds code beside tensors."""
    path = tmp_path / "weights.pt"
    torch.jit.save(torch.jit.script(torch.nn.Linear(3, 2)), path)

    assert "state_dict()" in refusal(tmp_path, write(tmp_path, ONE), path, size=3)


def test_the_class_is_found_without_being_built(tmp_path: Path) -> None:
    """`neuron-lstm init` needs the class alone."""
    with importable(tmp_path):
        assert load_class(write(tmp_path, ONE)).__name__ == "One"


FUNCTION = '''
import torch
from torch.nn.functional import relu


def _twice(x):
    return 2 * x


def func(x, y):
    """Double and add."""
    return relu(_twice(x) + y)
'''


def test_a_function_of_tensors_is_a_model_without_weights(tmp_path: Path) -> None:
    """The function must be defined in the file; imported and underscored functions do not count."""
    file = write(tmp_path, FUNCTION)
    with importable(tmp_path):
        model = load_model(file, None, ModelArguments())

    assert (type(model).__name__, type(model).__doc__) == ("func", "Double and add.")
    assert str(inspect.signature(model.forward)) == "(x, y)"
    assert model(torch.ones(3), torch.zeros(3)).tolist() == [2, 2, 2]


def test_several_functions_are_refused_with_their_names(tmp_path: Path) -> None:
    """The model among them is unknown."""
    text = refusal(tmp_path, write(tmp_path, FUNCTION.replace("_twice", "twice")))

    assert "2 functions (twice, func)" in text
    assert "underscore" in text


def test_a_class_is_the_model_whatever_functions_are_beside_it(tmp_path: Path) -> None:
    """The functions are used by the class."""
    file = write(tmp_path, f"{FUNCTION}{ONE}")
    with importable(tmp_path):
        assert load_class(file).__name__ == "One"


def test_lists_become_tuples_where_the_class_asks_for_them(tmp_path: Path) -> None:
    """An annotation or a default tells it; other lists stay lists."""
    text = """
import torch
from typing import Optional, Tuple
class Sized(torch.nn.Module):
    def __init__(self, a: tuple[int, int], b: Optional[Tuple[int, ...]] = None, c=(1, 2), d=None, e: list = None):
        super().__init__()
        self.given = [a, b, c, d, e]
"""
    with importable(tmp_path):
        arguments = ModelArguments(args={name: [3, 4] for name in "abcde"})
        model = load_model(write(tmp_path, text), None, arguments)
    assert model.given == [(3, 4), (3, 4), (3, 4), [3, 4], [3, 4]]


def test_a_train_method_that_returns_nothing_is_no_problem(tmp_path: Path) -> None:
    """Many models override it to freeze a layer."""
    text = f"{ONE}\n    def train(self, mode=True):\n        super().train(mode)\n"
    with importable(tmp_path):
        assert not load_model(write(tmp_path, text), saved(tmp_path), ModelArguments(args={"size": 3})).training


def test_the_part_of_a_checkpoint_that_was_read_is_told(tmp_path: Path) -> None:
    """A plain state dict is not worth a sentence."""
    told: list[str] = []
    state = torch.load(saved(tmp_path))
    path = tmp_path / "checkpoint.pt"
    torch.save({"state_dict": {f"module.{name}": tensor for name, tensor in state.items()}, "epoch": 3}, path)
    with importable(tmp_path):
        file, arguments = write(tmp_path, ONE), ModelArguments(args={"size": 3})
        load_model(file, tmp_path / "weights.pt", arguments, told.append)
        model = load_model(file, path, arguments, told.append)

    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert told == ["checkpoint.pt['state_dict'] holds the weights; the prefix 'module.' of their names was left out"]


def test_a_script_that_ends_python_is_refused(tmp_path: Path) -> None:
    """Otherwise packaging would end without an archive, without a message, and as if it had succeeded."""
    script = write(tmp_path, f"{ONE}\nimport sys\nsys.exit(0)\n")
    told = refusal(tmp_path, script, saved(tmp_path), size=3)

    assert "the_model.py ends Python while it is imported (sys.exit, code 0)" in told
    assert "if __name__ == '__main__':" in told


def test_a_constructor_that_ends_python_is_refused(tmp_path: Path) -> None:
    """The call is named."""
    text = ONE.replace("super().__init__()", "raise SystemExit(0)")

    assert "One(size=3) fails: SystemExit: 0" in refusal(tmp_path, write(tmp_path, text), saved(tmp_path), size=3)
