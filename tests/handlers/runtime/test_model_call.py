import sys
import time
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from own_description import described
from torch.nn.utils.rnn import PackedSequence

from torchserve_neuron_lstm.bucketing.shapes import TensorSpec
from torchserve_neuron_lstm.config.own_model import MaskForm
from torchserve_neuron_lstm.handlers.runtime.kept_state import KeptState
from torchserve_neuron_lstm.handlers.runtime.model_arguments import argument_makers
from torchserve_neuron_lstm.handlers.runtime.model_outputs import output_tensors
from torchserve_neuron_lstm.handlers.runtime.own_model import OwnProgram

Pair = namedtuple("Pair", ["left", "right"])  # noqa: PYI024 - users write these


@dataclass
class Record:
    scores: torch.Tensor
    rest: Any = None


class Alone(torch.nn.Module):
    """Counts the calls that run at this time, in a global of its file."""

    running = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Alone.running += 1
        time.sleep(0.01)
        found = Alone.running
        Alone.running -= 1
        return torch.full_like(x, found)


class Ends(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] == 1:
            sys.exit("too short")
        raise type("PanicException", (BaseException,), {})


def program(model: torch.nn.Module) -> OwnProgram:
    inputs = (TensorSpec("x", "float32", ("batch", "time")),)
    return OwnProgram(model, described({"x": {"input": 0}}), inputs, KeptState(model, [], {}))


def test_two_models_answer_one_after_the_other() -> None:
    programs = [program(Alone()), program(Alone())]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda number: programs[number % 2]([torch.zeros(1, 3)])[0], range(16)))

    assert {answer.max().item() for answer in found} == {1.0}


@pytest.mark.parametrize(
    ("timesteps", "told"), [(1, r"called sys\.exit\(\)"), (2, "raised PanicException, which is no")]
)
def test_code_that_ends_the_process_fails_as_any_other_error(timesteps: int, told: str) -> None:
    with pytest.raises(RuntimeError, match=f"the model's code {told}"):
        program(Ends())([torch.zeros(1, timesteps)])


def test_arguments_are_made_of_a_request_and_its_length() -> None:
    model = described(
        {
            "x": {"input": 0},
            "state": {"tuple": [{"input": 1}, {"tuple": [{"constant": 3}]}]},
            "batch": {"fields": {"ids": {"input": 1}, "n": {"lengths": "tensor"}}},
            "n": {"lengths": "list"},
            "numbers": {"lengths": "numpy"},
            "packed": {"packed": [0, True]},
            "mask": {"mask": True},
        },
        MaskForm("bool", 0, (1, 1, -1)),
    )
    x, y = torch.ones(1, 4, 2), torch.zeros(1)

    made = {name: make([x, y], [4]) for name, make in argument_makers(model).items()}

    assert made["x"] is x
    assert made["state"][0] is y
    assert made["state"][1] == (3,)
    assert made["batch"].ids is made["batch"]["ids"] is y
    assert made["batch"].n.tolist() == made["n"] == [4]
    assert isinstance(made["numbers"], np.ndarray)
    assert isinstance(made["packed"], PackedSequence)
    assert made["mask"].dtype == torch.bool
    assert made["mask"].tolist() == [[[False] * 4]]


def test_a_constant_that_a_request_changes_is_as_before_for_the_next_one() -> None:
    arguments: dict[str, dict[str, Any]] = {
        "history": {"constant": []},
        "batch": {"fields": {"options": {"constant": {"gain": 1, "sizes": [2]}}}},
    }
    makers = argument_makers(described(arguments))

    def made() -> tuple[Any, Any]:
        return makers["history"]([], [4]), makers["batch"]([], [4]).options

    history, options = made()
    history.append(1)
    options["sizes"].append(3)
    options["gain"] = 5

    assert made() == ([], {"gain": 1, "sizes": [2]})


@pytest.mark.parametrize(
    ("returned", "places"),
    [
        (torch.ones(2), {"": [1.0, 1.0]}),
        (Pair(torch.ones(1), [1, 2]), {"left": [1.0], "right": [1, 2]}),
        (Record(torch.ones(1)), {"scores": [1.0]}),
        (SimpleNamespace(a=np.arange(2), b=np.float32(2)), {"a": [0, 1], "b": 2.0}),
        ({"a": (torch.ones(1), {"b": 2.5}), "c": None}, {"a.0": [1.0], "a.1.b": 2.5}),
        ([[1, 2], [3, 4]], {"": [[1, 2], [3, 4]]}),
        ([[1, np.int64(2)], [np.int64(3), 4]], {"": [[1, 2], [3, 4]]}),
        ([], {"": []}),
        (torch.eye(2).to_sparse(), {"": [[1.0, 0.0], [0.0, 1.0]]}),
        ([torch.ones(1), True], {"0": [1.0], "1": True}),
    ],
)
def test_what_a_model_returns_becomes_tensors_with_their_places(returned: Any, places: dict[str, Any]) -> None:
    assert {place: tensor.tolist() for place, tensor in output_tensors(returned)} == places


def test_what_is_no_tensor_is_named() -> None:
    with pytest.raises(TypeError, match="it returns a str as text"):
        list(output_tensors({"text": "hello"}))
