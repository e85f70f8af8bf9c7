"""Programs rewritten for Vollo, as modules for its compiler, and refusals: all without the compiler."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from computed import Computed
from recurrent import GARBAGE, Case, Recurrent, exported, ragged_batch
from torch import nn
from vollo_models import BATCH, FEATURES, TIME, Answers, InTime, batch, program_of, real

from torchserve_neuron_lstm.backends.exported_program import specialize
from torchserve_neuron_lstm.backends.interface import CompileError
from torchserve_neuron_lstm.backends.partitioning.partition import partition
from torchserve_neuron_lstm.backends.vollo import translate
from torchserve_neuron_lstm.backends.vollo.rewrite import operator_refusal, reject_recurrences, rewrite_program
from torchserve_neuron_lstm.bucketing.shapes import Bucket
from torchserve_neuron_lstm.config.partitioner import PartitionerConfig

BUCKET = Bucket(BATCH, TIME)
ANY = PartitionerConfig(model_support_percentage_threshold=0)

MODELS = {
    "one layer": Answers(),
    "three layers": Answers(3),
    "both directions": Answers(2, both=True),
    "cells": Answers(2, cells=True),
    "given states": Answers(2, given=True),
}


def rewrite(module: Answers) -> torch.export.ExportedProgram:
    return rewrite_program(specialize(program_of(module), BUCKET))


def targets(program: torch.export.ExportedProgram) -> list[str]:
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


@pytest.mark.few(1)
@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_a_rewritten_program_is_the_model(name: str) -> None:
    module = MODELS[name].eval()
    program = rewrite(module).module()
    for garbage in GARBAGE:
        inputs = batch(module, garbage)
        ours = program(*inputs)

        for mine, right in zip((real(ours[0], inputs[1]), *ours[1:]), module.alone(*inputs), strict=True):
            assert torch.allclose(mine, right, atol=1e-6)


@pytest.mark.few(1)
@pytest.mark.parametrize("layers", [1, 2])
def test_layers_and_what_follows_them_in_time_stay_together(layers: int) -> None:
    program = rewrite(InTime(layers))
    segments = partition(program, lambda node: translate.refusal(node) is None, ANY).segments

    assert not any("mask_padding" in target for target in targets(program))
    assert [segment.place for segment in segments] == ["device"]


def test_zeros_stay_where_a_sum_over_time_would_see_the_padding() -> None:
    """`y.sum(1)` of the output of pad_packed_sequence depends on them."""
    assert sum("mask_padding" in target for target in targets(rewrite(Answers()))) == 1


TAILS: dict[str, Callable[[Answers, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": lambda m, y, n: torch.relu(m.linear(y)).sum(1),
    "softmax over time": lambda m, y, n: torch.softmax(y, 1) * (y != 0),
    "running sum": lambda m, y, n: torch.cumsum(y.flip(1), 1),
    "next step": lambda m, y, n: torch.relu(y) + y.roll(-1, 1),
    "a layer that sees the padding": lambda m, y, n: again(m, y, None),
    "a layer of shorter lengths": lambda m, y, n: again(m, y, (n + 1) // 2),
    "a layer of longer lengths": lambda m, y, n: again(m, y, (n + 1).clamp(max=TIME)),
    "a layer of the same lengths": lambda m, y, n: again(m, torch.tanh(y) * 2, n),
    "weights from features": lambda m, y, n: torch.softmax(m.norm(y), -1) * y,
    "a row's own last step": lambda m, y, n: y[torch.arange(y.shape[0]), n - 1],
}


def again(module: Answers, y: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
    """The final state of a further layer, with weights h -> gates, which fit both sides."""
    zeros = y.new_zeros(1, y.shape[0], 16)
    w_hh = module.core.weight_hh_l0
    h: torch.Tensor
    _, h, _ = torch.ops.neuron_lstm.lstm(y, lengths, zeros, zeros, [w_hh, w_hh], False, 1, False, False)
    return h[0]


@pytest.mark.few(1)
@torch.no_grad()
@pytest.mark.parametrize("name", TAILS)
def test_zeros_are_left_out_only_where_nothing_can_tell(name: str) -> None:
    class Tail(Answers):
        def forward(self, x: torch.Tensor, lengths: torch.Tensor, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
            zeros = x.new_zeros(1, x.shape[0], 16)
            weights = [getattr(self.core, each) for each in self.core._flat_weights_names]
            y, _, _ = torch.ops.neuron_lstm.lstm(x, lengths, zeros, zeros, weights, True, 1, False, False)
            return (TAILS[name](self, y, lengths),)

    module = Tail().eval()
    program = rewrite(module).module()
    for garbage in (0.0, 1e4):
        inputs = batch(module, garbage)
        (ours,), (right,) = program(*inputs), module(*inputs)
        in_time = ours.dim() == 3
        ours, right = (real(one, inputs[1]) if in_time else one for one in (ours, right))

        assert torch.allclose(ours, right, atol=1e-6)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case("gru"), "supports no gru, only LSTMs"),
        (Case(projected=True), "support no proj_size"),
        (Case(bidirectional=True, given_state=True), "its bidirectional LSTMs have no initial state"),
    ],
    ids=str,
)
def test_a_recurrence_that_it_lacks_is_refused_with_its_line(case: Case, reason: str) -> None:
    program = exported(Recurrent(case), *ragged_batch(0.0))

    with pytest.raises(CompileError, match=rf"\(at recurrent.py:\d+\): .*{reason}"):
        reject_recurrences(program)


def test_too_many_steps_to_write_out_are_refused() -> None:
    with pytest.raises(CompileError, match="33 steps are too many: use lengths of up to 32"):
        rewrite_program(specialize(program_of(Answers(given=True)), Bucket(1, 33)))


OPERATORS: dict[str, Any] = {
    "linear": nn.Linear(FEATURES, 3),
    "linear without bias": nn.Linear(FEATURES, 3, bias=False),
    "layer_norm": nn.LayerNorm(FEATURES),
    "layer_norm without weights": nn.LayerNorm(FEATURES, elementwise_affine=False, eps=1e-3),
    "gelu": nn.GELU(),
    "gelu by tanh": nn.GELU("tanh"),
    "silu": nn.SiLU(),
    "softplus": nn.Softplus(),
    "dropout": nn.Dropout(),
    "softmax": nn.Softmax(-1),
    **{name: Computed(getattr(torch, name)) for name in ("relu", "sigmoid", "tanh", "exp", "exp2", "neg", "square")},
    "roots": Computed(lambda x: torch.rsqrt(x * x + 1) + torch.sqrt(x * x)),
    "logarithms": Computed(lambda x: torch.log(x * x + 1) + torch.log2(x * x + 1) - torch.log10(x * x + 1)),
    "reciprocal": Computed(lambda x: 1 / (x * x + 1)),
    "mean": Computed(lambda x: x.mean(1)),
    "sum": Computed(lambda x: x.sum(-1, keepdim=True)),
    "larger": Computed(lambda x: torch.maximum(x, torch.minimum(2 * x, x - 1))),
    "shapes": Computed(lambda x: x.reshape(BATCH, -1).unsqueeze(1).squeeze(1).t().permute(1, 0) * 2),
    "pieces": Computed(lambda x: torch.cat([x[:, 1:3], x[:, :-1]], 1) + torch.stack([x[:, -1]] * 7, 1)),
    "halves": Computed(lambda x: x[..., 2] @ torch.transpose(x[..., 1], 0, 1)),
}


@pytest.mark.few(4)
@torch.no_grad()
@pytest.mark.parametrize("name", OPERATORS)
def test_a_module_for_the_compiler_computes_what_the_program_does(name: str) -> None:
    x = torch.randn(BATCH, TIME, FEATURES)
    program = specialize(torch.export.export(OPERATORS[name].eval(), (x,), strict=False), BUCKET)
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    refused = {str(node.target): reason for node in calls if (reason := translate.refusal(node))}

    assert refused == {}
    assert torch.allclose(translate.to_vollo_module(program)(x), OPERATORS[name](x), atol=1e-6)


@pytest.mark.ci
def test_weights_that_are_used_again_are_there_once() -> None:
    """An unrolled LSTM reads its weights in every step, and they must fit the accelerator."""
    segments = partition(rewrite(Answers(cells=True)), lambda node: translate.refusal(node) is None, ANY).segments
    layers = [
        layer
        for segment in segments
        if segment.place == "device"
        for layer in translate.to_vollo_module(segment.program).children()
        if isinstance(layer, nn.Linear) and layer.out_features == 4 * 16
    ]

    assert len(layers) == 2


@pytest.mark.parametrize(
    ("function", "refused"),
    [
        (lambda x: torch.log_softmax(x, 1), ["aten.log_softmax.int"]),
        (lambda x: torch.sort(x)[0], ["aten.sort.default"]),
        (lambda x: x**3, ["aten.pow.Tensor_Scalar"]),
        (lambda x: torch.add(x, x, alpha=2), ["aten.add.Tensor"]),
        (lambda x: x.flip(1)[:, [0, 2]], []),
        (lambda x: torch.where(x > 0, x, 0.0) / torch.arange(1, FEATURES + 1), []),
    ],
)
def test_arithmetic_that_it_lacks_is_refused_and_the_rest_is_left_to_the_cpu(
    function: Callable[[torch.Tensor], torch.Tensor], refused: list[str]
) -> None:
    program = torch.export.export(Computed(function), (torch.randn(BATCH, TIME, FEATURES),), strict=False)

    assert [str(node.target) for node in program.graph.nodes if operator_refusal(node)] == refused
