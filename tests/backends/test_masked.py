"""The abstract operators in eager mode, the reference of every engine, are equal to torch's layers."""

import pytest
import torch
from recurrent import CASES, GARBAGE, HIDDEN, TIME, Case, Recurrent, exported, largest_error, ragged_batch

from torchserve_neuron_lstm.backends import masked


@pytest.mark.parametrize("case", CASES, ids=str)
@torch.no_grad()
def test_operator_equals_every_row_alone(case: Case) -> None:
    module = Recurrent(case)
    for garbage in GARBAGE if case.ragged else (0.0,):
        x, lengths = ragged_batch(garbage)

        assert largest_error(module(x, lengths), module.alone(x, lengths)) <= 1e-5


@pytest.mark.parametrize("case", [case for case in CASES if case.projected], ids=str)
@torch.no_grad()
def test_projection_folds_into_a_plain_lstm(case: Case) -> None:
    module = Recurrent(case)
    x, lengths = ragged_batch(0.0)
    weights = [getattr(module.core, name) for name in module.core._flat_weights_names]
    h_0, c_0 = module._states(len(x))
    answers = masked.without_projection(
        torch.ops.neuron_lstm.lstm,
        x,
        lengths if case.ragged else None,
        h_0,
        c_0,
        weights,
        case.bias,
        case.layers,
        case.bidirectional,
        case.need_cell,
    )

    assert largest_error(answers[: 3 if case.need_cell else 2], module.alone(x, lengths)) <= 1e-5


@torch.no_grad()
def test_unneeded_cell_is_zeros() -> None:
    module = Recurrent(Case(need_cell=False))
    x, lengths = ragged_batch(0.0)
    weights = [getattr(module.core, name) for name in module.core._flat_weights_names]
    c_n = torch.ops.neuron_lstm.lstm(x, lengths, *module._states(len(x)), weights, True, 1, False, False)[2]

    assert torch.equal(torch.zeros(1, len(x), HIDDEN), c_n)


@pytest.mark.parametrize("case", [Case(layers=2, bidirectional=True), Case("gru", bidirectional=True)], ids=str)
def test_gradients_are_those_of_the_layer(case: Case) -> None:
    module = Recurrent(case)
    x, lengths = ragged_batch(0.0)
    weights = [getattr(module.core, name) for name in module.core._flat_weights_names]
    states, layer = module._states(len(x)), masked.aten_layer(case.cell)
    if case.cell == "lstm":
        h_0, c_0 = states
        y = masked.masked_lstm(layer, x, lengths, h_0, c_0, weights, True, case.layers, True, True)[0]
    else:
        y = masked.masked_layers(layer, x, lengths, states, weights, case.layers, True)[0]
    ours = torch.autograd.grad(y.square().sum(), weights)
    theirs = torch.autograd.grad(module.alone(x, lengths)[0].square().sum(), weights)

    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", [CASES[2], CASES[4], CASES[10]], ids=str)
@torch.no_grad()
def test_exports_with_symbolic_batch_and_time(case: Case) -> None:
    module = Recurrent(case)
    program = exported(module, *ragged_batch(0.0))
    x, lengths = ragged_batch(0.0, batch=6, time=TIME + 4)

    assert largest_error(program.module()(x, lengths), module.alone(x, lengths)) <= 1e-5
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        promised = module(*ragged_batch(0.0))
    assert [(one.shape, one.stride()) for one in promised] == [
        (one.shape, one.stride()) for one in module(*ragged_batch(0.0))
    ]


@torch.no_grad()
def test_gates_with_sums_of_any_size_keep_the_cells_of_ended_rows() -> None:
    module, batch = Recurrent(Case(need_cell=True)), ragged_batch(0.0)
    module.core.bias_ih_l0.fill_(2e4)
    assert largest_error(module(*batch), module.alone(*batch)) <= 1e-5
