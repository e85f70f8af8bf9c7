from typing import Any

import pytest
import torch

from torchserve_neuron_lstm.backends.program_source.write import BINDINGS

_aten = torch.ops.aten
X, Y = torch.arange(1.0, 7.0).view(2, 3), torch.tensor([[0.5], [-2.0]])
W, IDS = torch.linspace(-1.0, 1.0, 12).view(4, 3), torch.tensor([[3, 0], [1, 1]])
CALLS: dict[Any, list[tuple[Any, ...]]] = {
    _aten.linear.default: [(X, W), (X, W, torch.ones(4)), (X, W, None)],
    _aten.add.Tensor: [(X, Y), (X, 2), (IDS, 1.5), (2, X), (IDS, True)],
    _aten.bmm.default: [(X[None], W.t()[None])],
    _aten.cat.default: [([X, X], -1), ([X, Y.expand(2, 3)],)],
    _aten.div.Tensor: [(X, Y), (IDS, 2)],
    _aten.embedding.default: [(W, IDS), (W, IDS, 0), (W, IDS, -1, False, False)],
    _aten.exp.default: [(X,)],
    _aten.layer_norm.default: [(X, [3], torch.ones(3), torch.zeros(3), 1e-3, False), (X, [3]), (X, [3], None, None)],
    _aten.matmul.default: [(X, W.t()), (X, W[0])],
    _aten.mul.Tensor: [(X, Y), (IDS, 0.5), (X, False), (X, 1j)],
    _aten.permute.default: [(X, [1, 0])],
    _aten.relu.default: [(Y,)],
    _aten.reshape.default: [(X, [3, -1]), (X[:1, 0], [])],
    _aten.select.int: [(X, 1, -1)],
    _aten.sigmoid.default: [(Y,), (IDS,)],
    _aten.softmax.int: [(X, -1), (IDS, 1, torch.float32)],
    _aten.squeeze.dim: [(Y, -1), (X, 0)],
    _aten.stack.default: [([X, X], 1)],
    _aten.sub.Tensor: [(X, Y), (IDS, 1)],
    _aten.sum.dim_IntList: [(X, [0]), (X, []), (X, [0, 1], True), (IDS, [1], False), (X, None)],
    _aten.tanh.default: [(Y,)],
    _aten.transpose.int: [(X, 0, -1)],
    _aten.unsqueeze.default: [(X, -1)],
}


def test_every_function_is_compared() -> None:
    assert set(CALLS) == set(BINDINGS)


@pytest.mark.parametrize("operator", list(BINDINGS), ids=str)
def test_a_function_answers_as_its_operator(operator: Any) -> None:
    function = eval(BINDINGS[operator], {"torch": torch})

    for arguments in CALLS[operator]:
        found, wanted = function(*arguments), operator(*arguments)
        assert found.dtype == wanted.dtype
        assert found.stride() == wanted.stride()
        assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    ("operator", "positional", "named"),
    [
        (_aten.add.Tensor, (X, X), {"alpha": 2}),
        (_aten.sub.Tensor, (X, X), {"alpha": 0.5}),
        (_aten.embedding.default, (W, IDS), {"padding_idx": 1}),
        (_aten.linear.default, (X, W), {"bias": torch.ones(4)}),
        (_aten.cat.default, ([X, X],), {"dim": 1}),
        (_aten.sum.dim_IntList, (X, [1]), {"keepdim": True}),
        (_aten.layer_norm.default, (X, [3]), {"cudnn_enable": False}),
        (_aten.sum.dim_IntList, (IDS, [1]), {"dtype": torch.float32}),
    ],
    ids=str,
)
def test_it_takes_the_same_names(operator: Any, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Exported programs name the arguments after the asterisk."""
    function = eval(BINDINGS[operator], {"torch": torch})

    assert torch.equal(function(*positional, **named), operator(*positional, **named))
