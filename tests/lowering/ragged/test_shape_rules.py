import pytest
import sympy
import torch

from torchserve_neuron_lstm.lowering.ragged.shape_rules import reshaped
from torchserve_neuron_lstm.lowering.ragged.sizes import SizeExpr, evaluate
from torchserve_neuron_lstm.lowering.ragged.value import Batch

T = sympy.Symbol("T", integer=True, positive=True)
TWO, THREE, SIX = map(sympy.Integer, (2, 3, 6))
LENGTHS = (5, 1, 3, 4)
TIME = 7


def padded(sizes: tuple[SizeExpr, ...]) -> list[int]:
    return [evaluate(size, TIME) for size in sizes]


def own_part(tensor: torch.Tensor, sizes: tuple[SizeExpr, ...], length: int) -> torch.Tensor:
    for dim, size in enumerate(sizes):
        tensor = tensor.narrow(dim, 0, evaluate(size, length))
    return tensor


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((TWO, T), (2 * T,)),
        ((2 * T,), (TWO, T)),
        ((THREE, TWO, T), (TWO, 3 * T)),
        ((T, T + 1), (T**2 + T,)),
        ((THREE, 2 * T), (SIX, T)),
        ((TWO, T, THREE), (T, SIX)),
    ],
    ids=str,
)
def test_every_row_is_reshaped_within_its_own_sizes(before: tuple[SizeExpr, ...], after: tuple[SizeExpr, ...]) -> None:
    batch = Batch(len(LENGTHS), TIME, torch.tensor(LENGTHS))
    around = (TWO, before, (T,)), (TWO, after, (T,))
    sizes = [(first, *group, *last) for first, group, last in around]
    tensor = torch.full((len(LENGTHS), *padded(sizes[0])), float("nan"))
    for row, length in enumerate(LENGTHS):
        part = own_part(tensor[row], sizes[0], length)
        part.copy_(torch.randn(part.shape))

    result = reshaped(batch, tensor, [([TWO], [TWO]), (before, after), ([T], [T])])

    result = result.reshape(len(LENGTHS), *padded(sizes[1]))
    for row, length in enumerate(LENGTHS):
        own = own_part(tensor[row], sizes[0], length)
        expected = own.reshape([evaluate(size, length) for size in sizes[1]])
        assert torch.equal(own_part(result[row], sizes[1], length), expected)
