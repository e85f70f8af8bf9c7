import pytest
import torch

from torchserve_neuron_lstm.bucketing.shapes import CarriedValue, TensorSpec
from torchserve_neuron_lstm.handlers.streaming.state import StateSerializer


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_values_of_different_dtypes_come_back(rows: int) -> None:
    """The place of a value in the bytes need not be a multiple of its size."""
    given = (
        torch.randn(rows, 3),
        torch.arange(rows) + 2**40,
        torch.tensor([True, False, True])[:rows],
        torch.randn(rows, 1, 2, dtype=torch.float64),
    )
    specs = (
        TensorSpec("sum", "float32", ("batch", 3)),
        TensorSpec("timesteps", "int64", ("batch",)),
        TensorSpec("seen", "bool", ("batch",)),
        TensorSpec("h", "float64", ("batch", 1, 2)),
    )
    serializer = StateSerializer([CarriedValue(spec, 0.0) for spec in specs])

    restored = serializer.deserialize(serializer.serialize(given))

    assert len(restored) == len(given)
    for found, expected in zip(restored, given, strict=True):
        assert torch.equal(found, expected)
