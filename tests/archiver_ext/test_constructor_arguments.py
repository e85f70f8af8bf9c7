import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from torchserve_neuron_lstm.archiver_ext.commands.infer_arguments import nested
from torchserve_neuron_lstm.archiver_ext.commands.init import starting_config
from torchserve_neuron_lstm.archiver_ext.errors import PackagingError
from torchserve_neuron_lstm.archiver_ext.model_class import importable, load_class
from torchserve_neuron_lstm.archiver_ext.user_model import build_model
from torchserve_neuron_lstm.config.load import parse_config
from torchserve_neuron_lstm.config.schema import ModelArguments
from torchserve_neuron_lstm.handlers.runtime.constructor_arguments import as_argument

MODEL = """
import torch
from torch import nn
from words import Words


class Reader(nn.Module):
    def __init__(self, opt, words=None, cell=nn.GRU):
        super().__init__()
        opt.out = opt["hidden"] * 2
        self.opt = opt
        self.embed = nn.Embedding(opt.vocabulary, opt.width)
        self.rnn = cell(opt.width, opt.hidden, num_layers=getattr(opt, "layers", 1), batch_first=True)
        self.out = nn.Linear(opt.hidden, opt.out)
        self.words = words

    def forward(self, ids):
        return self.out(self.rnn(self.embed(ids))[0])
"""
WORDS = """
class Words:
    def __init__(self, words, unknown=0):
        self.size = len(words)
"""


def built(folder: Path, **args: Any) -> torch.nn.Module:
    (folder / "model.py").write_text(MODEL)
    (folder / "words.py").write_text(WORDS)
    with importable(folder):
        return build_model(folder / "model.py", ModelArguments(args=args))


def test_a_mapping_is_an_object_with_attributes_and_a_dict(tmp_path: Path) -> None:
    model: Any = built(tmp_path, opt={"vocabulary": 9, "width": 3, "hidden": 4})

    assert (model.embed.num_embeddings, model.rnn.num_layers, model.out.out_features) == (9, 1, 8)
    assert copy.deepcopy(model).opt == model.opt


def test_an_object_is_made_by_a_class_of_the_users_files(tmp_path: Path) -> None:
    model: Any = built(
        tmp_path,
        opt={"vocabulary": 9, "width": 3, "hidden": 4},
        words={"_target_": "words.Words", "_args_": [["a", "b"]], "unknown": 1},
        cell={"_target_": "torch.nn.LSTM", "_partial_": True},
    )

    assert model.words.size == 2
    assert isinstance(model.rnn, torch.nn.LSTM)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"opt": {"vocabulary": 9}}, "the options under neuron_lstm.model.args have no width|have no hidden|'hidden'"),
        ({"opt": {}, "words": {"_target_": "words.Wrods"}}, "there is no words.Wrods"),
        ({"opt": {}, "words": {"_target_": "nowhere.Words"}}, "there is no nowhere.Words"),
        ({"opt": {}, "words": {"_target_": "Words"}}, "there is no Words"),
        ({"opt": {}, "words": {"_target_": "words.Words"}}, r"words.Words\(\) fails: TypeError"),
    ],
)
def test_a_mapping_that_makes_no_object_is_refused(args: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(PackagingError, match=said):
        built(tmp_path, **args)


def test_a_list_may_hold_objects() -> None:
    layers = as_argument([{"size": 3, "norm": {"kind": "layer"}}])

    assert (layers[0].size, layers[0].norm.kind) == (3, "layer")


def test_init_writes_nested_arguments(tmp_path: Path) -> None:
    built(tmp_path, opt={"vocabulary": 9, "width": 3, "hidden": 4})
    args = {"opt": {"vocabulary": 9, "width": 3, "hidden": 4}}
    with importable(tmp_path):
        text = starting_config(load_class(tmp_path / "model.py"), args, 64)

    assert parse_config(text, "model-config.yaml").model.args == args


def test_an_argument_that_is_a_value_and_a_mapping_is_refused() -> None:
    with pytest.raises(PackagingError, match=r"--args opt\.hidden: opt is given as 3 too"):
        nested({"opt": 3, "opt.hidden": 8})
