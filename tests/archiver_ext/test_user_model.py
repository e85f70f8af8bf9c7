"""The user's model from its files, or the reason of a refusal with a remedy."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from torchserve_neuron_lstm.archiver_ext.errors import PackagingError
from torchserve_neuron_lstm.archiver_ext.user_model import check_codec, importable, load_class, load_model

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
        load_model(model_file, serialized, args)
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
        model = load_model(write(tmp_path, ONE), path, {"size": 3})

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
        assert type(load_model(file, saved(tmp_path), {})).__name__ == "Whole"
        assert "blocks_of_mine" in sys.modules

    assert set(sys.modules) == modules
    assert sys.path == path
    assert not list(tmp_path.rglob("__pycache__"))


def test_a_model_without_weights_needs_no_file(tmp_path: Path) -> None:
    """A model without parameters loads no weights."""
    file = write(tmp_path, "import torch\nclass Nothing(torch.nn.Module):\n    pass\n")
    with importable(tmp_path):
        assert load_model(file, None, {}).state_dict() == {}


def test_a_model_whose_train_returns_nothing_is_loaded(tmp_path: Path) -> None:
    """`eval()` returns what `train()` does."""
    text = f"{ONE}\n    def train(self, mode=True):\n        super().train(mode)\n"
    with importable(tmp_path):
        model = load_model(write(tmp_path, text), saved(tmp_path), {"size": 3})

    assert not model.training


def test_two_classes_are_refused_with_both_names(tmp_path: Path) -> None:
    """Imported classes do not count."""
    text = refusal(tmp_path, write(tmp_path, f"{ONE}\nclass Two(One):\n    pass\n"))

    assert "defines 2 torch.nn.Module classes (One, Two)" in text
    assert "--extra-files" in text


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


def test_weights_of_a_data_parallel_model_are_recognised(tmp_path: Path) -> None:
    """The prefix of DataParallel is explained."""
    path = tmp_path / "weights.pt"
    torch.save({"module.linear.weight": torch.zeros(2, 3), "module.linear.bias": torch.zeros(2)}, path)

    assert "saved from DataParallel" in refusal(tmp_path, write(tmp_path, ONE), path, size=3)


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


def test_a_codec_must_be_a_class_in_the_archive(tmp_path: Path) -> None:
    """The reasons have different messages."""
    write(tmp_path, "class Text:\n    pass\n", "words.py")
    write(tmp_path, "import not_there_at_all\n", "broken.py")
    with importable(tmp_path):
        check_codec("words:Text", tmp_path)
        check_codec(None, tmp_path)
        for codec, complaint in [
            ("missing:Text", "no missing.py in the archive; give it with --extra-files"),
            ("words:Absent", "words.py defines no class Absent"),
            ("broken:Text", "broken.py cannot be imported: ModuleNotFoundError"),
        ]:
            with pytest.raises(PackagingError, match=complaint):
                check_codec(codec, tmp_path)


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
        model = load_model(file, None, {})

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
