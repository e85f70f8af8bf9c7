"""dynamic_batch(): rows are answered as alone; functions without a batch dimension are refused."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from traceable import Conv, PackedTagger, Step, TimeMajor

from torchserve_neuron_lstm import tracing
from torchserve_neuron_lstm.backends.signature import Signature, TensorType
from torchserve_neuron_lstm.tracing.row_batches import run_in_batches

ENGINES = ("eager", "native", "openvino", "onnxruntime", pytest.param("inductor", marks=pytest.mark.long))


@pytest.mark.few(2)
@pytest.mark.parametrize("backend", ENGINES)
@pytest.mark.parametrize("traced_rows", [1, 3])
def test_any_batch_is_the_model_itself(backend: str, traced_rows: int) -> None:
    torch.manual_seed(0)
    model = PackedTagger().eval()
    example = torch.rand(traced_rows, 6, 4), torch.full([traced_rows], 6)
    traced = tracing.dynamic_batch(tracing.trace(model, example, backend=backend))

    for rows in (1, 2, 3, 7, 8):
        x, lengths = torch.rand(rows, 6, 4), torch.randint(1, 7, [rows])
        with torch.no_grad():
            torch.testing.assert_close(traced(x, lengths), model(x, lengths), rtol=1e-5, atol=1e-5)


@given(rows=st.integers(1, 40), size=st.integers(1, 12))
def test_chunks_are_run_at_the_traced_size_and_put_together_again(rows: int, size: int) -> None:
    signature = Signature({"x": TensorType("int64", (size, 2)), "y": TensorType("int64", (size,))}, {})
    x = torch.arange(rows * 2).reshape(rows, 2)

    calls = []

    def run(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        signature.check_inputs(inputs)
        calls.append(inputs)
        return [inputs[0].sum(1), inputs[1] + 1]

    total, following = run_in_batches(run, signature, [x, torch.arange(rows)])

    assert torch.equal(total, x.sum(1))
    assert torch.equal(following, torch.arange(rows) + 1)
    assert len(calls) == -(-rows // size)


def test_the_batch_is_fixed_until_the_trace_is_changed_in_place() -> None:
    traced = tracing.trace(Conv(), torch.rand(1, 1, 3, 3), backend="eager")

    with pytest.raises(tracing.WrongInput):
        traced(torch.rand(8, 1, 3, 3))
    assert tracing.dynamic_batch(traced) is traced
    assert traced(torch.rand(8, 1, 3, 3)).shape == (8, 1, 1, 1)


def test_another_size_beside_dimension_0_is_a_value_error() -> None:
    """The documented example: traced with [2, 3, 5], [3, 3, 5] is valid and [2, 7, 5] is not."""
    traced = tracing.dynamic_batch(tracing.trace(nn.Linear(5, 2), torch.rand(2, 3, 5), backend="eager"))

    assert traced(torch.rand(3, 3, 5)).shape == (3, 3, 2)
    with pytest.raises(ValueError, match=r"'input' is float32 \[2, 7, 5\], expected float32 \[any, 3, 5\]"):
        traced(torch.rand(2, 7, 5))


def test_unequal_rows_of_a_call_are_a_value_error() -> None:
    traced = tracing.dynamic_batch(tracing.trace(torch.add, (torch.rand(1, 2), torch.rand(1, 2)), backend="eager"))

    with pytest.raises(ValueError, match=r"dimension 0 must be the same in all inputs: .* has 3, .* has 4"):
        traced(torch.rand(3, 2), torch.rand(4, 2))
    with pytest.raises(ValueError, match="there are no rows"):
        traced(torch.rand(0, 2), torch.rand(0, 2))


def mean_of_rows(x: torch.Tensor) -> torch.Tensor:
    return x - x.mean(0, keepdim=True)


def embedded_minus_mean(ids: torch.Tensor) -> torch.Tensor:
    return mean_of_rows(torch.arange(40.0).reshape(10, 4)[ids])


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("func", "example", "message"),
    [
        (torch.add, (torch.rand(1, 2), torch.rand(3, 2)), r"not the same size in all inputs: \[1, 2\], \[3, 2\]"),
        (TimeMajor(), torch.rand(6, 2, 4), "output 0 of a row depends on other rows"),
        (TimeMajor(), torch.rand(1, 2, 4), "output 0 of a row depends"),
        (Step(), (torch.rand(2, 3, 4), torch.rand(1, 2, 5), torch.rand(1, 2, 5)), "not the same size in all inputs"),
        (Step(), (torch.rand(1, 3, 4), torch.rand(1, 1, 5), torch.rand(1, 1, 5)), "accepts no other size there"),
        (lambda x: x.flip(0), torch.rand(2, 3), "output 0 of a row depends"),
        (mean_of_rows, torch.rand(2, 3), "output 0 of a row depends"),
        (embedded_minus_mean, torch.tensor([[1, 2, 3]]), "output 0 of a row depends"),
        (embedded_minus_mean, torch.tensor([[[1], [2]]] * 2), "output 0 of a row depends"),
        (lambda x: x.reshape(1, 6), torch.rand(2, 3), "the function accepts no other size there"),
        (torch.sum, torch.rand(2, 3), "output 0 of a row depends"),
    ],
)
def test_what_has_no_batch_in_dimension_0_is_a_value_error(func: Any, example: Any, message: str) -> None:
    traced = tracing.trace(func, example, backend="eager")

    with pytest.raises(ValueError, match=message):
        tracing.dynamic_batch(traced)


def test_ids_may_have_a_vocabulary_for_each_column() -> None:
    """Such rows are not reordered within: they would be invalid."""

    def two_tables(ids: torch.Tensor) -> torch.Tensor:
        return torch.arange(3.0)[ids[:, 0]] + torch.arange(9.0)[ids[:, 1]]

    traced = tracing.dynamic_batch(tracing.trace(two_tables, torch.tensor([[2, 8]]), backend="eager"))

    assert torch.equal(traced(torch.tensor([[0, 8], [1, 3]])), torch.tensor([8.0, 4.0]))


def test_a_saved_trace_takes_any_batch_still(tmp_path: Path) -> None:
    model = Conv().eval()
    traced = tracing.trace(model, torch.rand(2, 1, 3, 3), backend="eager")
    traced.save(tmp_path / "fixed")
    tracing.dynamic_batch(traced).save(tmp_path / "any")
    tracing.trace(TimeMajor(), torch.rand(6, 2, 4), backend="eager").save(tmp_path / "time")
    x = torch.rand(5, 1, 3, 3)

    with torch.no_grad():
        torch.testing.assert_close(tracing.load(tmp_path / "any")(x), model(x))
        torch.testing.assert_close(tracing.dynamic_batch(tracing.load(tmp_path / "fixed"))(x), model(x))
    with pytest.raises(ValueError, match="dimension 0 is no batch"):
        tracing.dynamic_batch(tracing.load(tmp_path / "time"))
