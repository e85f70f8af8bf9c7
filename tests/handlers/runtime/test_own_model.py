"""A model's own code on its host: what a request has imported, and what cannot be put back after it."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from own_description import described

from torchserve_neuron_lstm.bucketing.shapes import TensorSpec
from torchserve_neuron_lstm.handlers.runtime.own_model import OwnProgram, load_own_model
from torchserve_neuron_lstm.handlers.runtime.user_code import working_directory

MODEL = """
import importlib
import torch
import own_package


class Kept:
    first = 0
    second = 0


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.register_buffer("rows", torch.zeros(1, 1).expand(3, 1), persistent=False)
        with torch.inference_mode():
            self.register_buffer("constant", torch.zeros(1), persistent=False)

    def forward(self, x):
        rare = float(x.max()) > 9
        {body}
        return x + self.weight + total
"""
LATE = "FOUND = []\n"
BODIES = {
    "a module": "import own_late as late",
    "a module of a package": "import own_package.late; late = own_package.late",
    "a module by its name": "late = importlib.import_module('own_late')",
    "a module for rare requests alone": "late = importlib.import_module('own_late') if rare else own_package",
}
COUNTS = "; late.FOUND += [1] * rare; total = len(late.FOUND)"

Load = Callable[[str], OwnProgram]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Load a model of a file, whose forward() runs some statements."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def loaded(body: str) -> OwnProgram:
        (tmp_path / "own_package").mkdir()
        for name in ("own_late", "own_package/__init__", "own_package/late"):
            (tmp_path / f"{name}.py").write_text(LATE)
        (tmp_path / "own_model.py").write_text(MODEL.format(body=body))
        model = replace(described({"x": {"input": 0}}), file="own_model.py", module="own_model", imports_late=True)
        inputs = (TensorSpec("x", "float32", ("batch", "time")),)
        weights = {"weight": torch.ones(1), "rows": torch.full((3, 1), 2.0), "constant": torch.full((1,), 3.0)}
        return load_own_model(model, inputs, tmp_path, weights, partial(working_directory, tmp_path))

    yield loaded
    for name in set(sys.modules) - before:
        if name.startswith("own_"):
            del sys.modules[name]


def answers(program: OwnProgram, *values: float) -> list[float]:
    return [program([torch.tensor([[value]])])[0].item() for value in values]


@pytest.mark.parametrize("kind", BODIES)
def test_globals_of_a_module_that_a_request_imports_are_put_back(kind: str, load: Load) -> None:
    program = load(BODIES[kind] + COUNTS)

    assert answers(program, 10, 1, 10, 10, 1) == [12, 2, 12, 12, 2]
    assert any(name.endswith("FOUND") for name in program.state.changed)


def test_a_module_that_cannot_be_imported_twice_stays(load: Load, tmp_path: Path) -> None:
    program = load("import own_late as late" + COUNTS)
    (tmp_path / "own_late.py").write_text(
        "import sys\nassert not hasattr(sys, 'own_once')\nsys.own_once = 1\nFOUND = []\n"
    )
    try:
        assert answers(program, 1, 10, 1, 10) == [2, 12, 2, 12]
    finally:
        del sys.own_once  # type: ignore[attr-defined]  # set above


def test_a_module_that_others_import_between_requests_is_theirs(load: Load) -> None:
    program = load("total = 0")
    import own_late  # type: ignore[import-not-found]  # as a codec does

    own_late.FOUND.append(1)
    answers(program, 1, 10, 1)

    assert sys.modules["own_late"] is own_late
    assert own_late.FOUND == [1]


REORDERED = "[delattr(Kept, 'first'), setattr(Kept, 'first', 1)] if rare else None; total = Kept.first"


def test_a_model_whose_state_cannot_be_put_back_is_made_anew(load: Load) -> None:
    program = load(REORDERED)
    own = program.model

    assert answers(program, 1, 10, 10, 1, 1) == [2, 12, 12, 2, 2]
    assert program.model is not own
    assert "own_model.Kept.first" in program.state.changed


def test_a_model_that_cannot_be_made_anew_gives_no_wrong_answer(load: Load, tmp_path: Path) -> None:
    program = load(REORDERED)
    answers(program, 10)
    file = tmp_path / "own_model.py"
    text = file.read_text()
    file.write_text(text.replace("zeros(1)", "zeros(2)"))

    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"the model Model of own_model\.py cannot be made here"):
            answers(program, 1)
    file.write_text(text)

    assert answers(program, 1, 10, 1) == [2, 12, 2]


def test_buffers_that_cannot_be_written_at_once_get_their_values(load: Load) -> None:
    program = load("total = self.rows.sum() + self.constant; self.rows[1] += rare")

    assert answers(program, 1, 10, 1) == [11, 20, 11]
