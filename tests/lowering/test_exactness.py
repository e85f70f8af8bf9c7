"""A lowered program equals eager mode on each request alone, for any batch and any padding."""

import pytest
import torch
from input_configs import config_of
from model_cases import CASES, Case, cases, lowered
from ragged import beside_alone
from torch import Tensor, nn

from torchserve_neuron_lstm.config.load import parse_config
from torchserve_neuron_lstm.lowering import lower
from torchserve_neuron_lstm.lowering.program import LoweredModel

TOLERANCE = 1e-5
RAGGED = ([1], [9, 1, 4], [16, 15, 1, 7, 16], [2, 2])
BY_NAME = {case.name: case for case in CASES}


def program_of(name: str) -> LoweredModel:
    return lowered(BY_NAME[name]).program


@pytest.mark.parametrize("case", cases(few=True))
def test_a_program_answers_as_the_model_alone(case: Case) -> None:
    made = lowered(case)
    has_batch = any(spec.batch_dim is not None for spec in made.program.inputs)
    batches = [lengths if has_batch else lengths[:1] for lengths in RAGGED]
    for ours, own, told in beside_alone(made.model, made.config, made.program, batches):
        assert ours.shape == own.shape
        assert torch.allclose(ours, own, TOLERANCE, TOLERANCE), told


@pytest.mark.ci
def test_what_the_layouts_of_the_answers_are_comes_from_the_graph() -> None:
    named = ("FixedLength", "Tagger", "ProjectedFourLayers", "LstmWithState", "SelfAttention", "NoBatch", "NoTime")
    outputs = {name: [(spec.name, spec.shape) for spec in program_of(name).outputs] for name in named}

    assert outputs["FixedLength"] == [("0", ("time", "batch", 7)), ("1.0", (1, "batch", 7)), ("1.1", (1, "batch", 7))]
    assert outputs["Tagger"] == [("logits", ("batch", "time", 5))]
    assert outputs["ProjectedFourLayers"] == [
        ("y", ("batch", "time", 4)),
        ("state.0", (4, "batch", 4)),
        ("state.1", (4, "batch", 9)),
    ]
    assert outputs["LstmWithState"][0] == ("0", (40, "batch", 16))
    assert outputs["SelfAttention"] == [("context", ("batch", "time", 8)), ("attention", ("batch", "time", "time"))]
    assert outputs["NoBatch"] == [("output", ("time", 3))]
    assert outputs["NoTime"] == [("output", ("batch", 2))]


def test_parameters_keep_their_names() -> None:
    """The program's state dict is the model's own, so the user's checkpoint serves every variant."""
    made = lowered(BY_NAME["ResidualStack"])

    assert set(made.program.exported.state_dict) == set(made.model.state_dict())


def test_the_models_forward_is_its_own_again() -> None:
    case = CASES[0]
    model = case.make().eval()
    x = torch.rand(5, 2, 3)
    before = model(x)[0]

    lower(model, parse_config(case.yaml, "model-config.yaml"))

    assert "forward" not in vars(model)
    assert torch.equal(model(x)[0], before)


@pytest.mark.ci
def test_ids_are_bounded_by_the_embedding_they_index() -> None:
    """Some engines abort the process on an id beyond the embedding table, or beyond a one-hot vector."""
    expected = {"Tagger": [50], "OneHotLetters": [26], "TwoInputs": [30, None, None], "CausalPerStep": [None]}

    assert {name: [spec.vocabulary for spec in program_of(name).inputs] for name in expected} == expected


def test_a_cell_state_nobody_reads_is_not_asked_for() -> None:
    """An exact final cell state costs time; the tagger does not need it."""
    for name, needed in (("Tagger", False), ("FixedLength", True)):
        nodes = program_of(name).exported.graph.nodes
        assert [node.args[8] for node in nodes if node.target is torch.ops.neuron_lstm.lstm.default] == [needed]


BLANK = config_of("{ids: {dtype: int64, shape: [batch, time]}}", "lengths: lengths")


class WeightedWords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 6)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        return torch.softmax(self.embed(ids).sum(2) - 1e4 * (ids == 0), 1).amax(1)


def test_a_request_of_the_padding_id_only_is_answered_as_alone() -> None:
    """A large number subtracted at the id of padding hides padding from all requests but such a one."""
    model = WeightedWords()
    run = lower(model, BLANK).exported.module()

    for length in (1, 2, 5):
        batch = torch.zeros(2, 16, dtype=torch.int64)
        answers = run(batch, torch.tensor([length, length]))[0]
        assert torch.allclose(answers, model(batch[:, :length], torch.tensor([length, length])), 1e-5, 1e-5)
