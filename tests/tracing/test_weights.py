"""replace_weights(): other weights without compiling, if they are separate from the programs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from traceable import Conv, PackedTagger

from torchserve_neuron_lstm import tracing

EXAMPLE = torch.rand(2, 6, 4), torch.tensor([6, 3])


@pytest.mark.parametrize(("backend", "as_module"), [("eager", True), ("native", False), ("onnxruntime", True)])
def test_the_answers_are_those_of_the_new_weights(backend: str, as_module: bool, tmp_path: Path) -> None:
    tracing.trace(PackedTagger(), EXAMPLE, inline_weights_to_neff=False, backend=backend).save(tmp_path / "old")
    other = PackedTagger().eval()

    loaded = tracing.load(tmp_path / "old")
    assert tracing.replace_weights(loaded, other if as_module else other.state_dict()) is None  # type: ignore[func-returns-value]  # it returns nothing, as documented

    loaded.save(tmp_path / "new")
    with torch.no_grad():
        expected = other(*EXAMPLE)
    for run in (loaded, tracing.load(tmp_path / "new")):
        torch.testing.assert_close(run(*EXAMPLE), expected, rtol=1e-5, atol=1e-5)


def test_inlined_weights_stay_with_a_warning() -> None:
    model, x = Conv().eval(), torch.rand(1, 1, 3, 3)
    traced = tracing.trace(model, x, backend="eager")

    with pytest.warns(UserWarning, match="the weights of this trace are inlined and cannot be replaced"):
        tracing.replace_weights(traced, Conv())

    with torch.no_grad():
        torch.testing.assert_close(traced(x), model(x))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("conv.bias"), r"conv.bias: missing, expected float32 \[1\]"),
        (lambda state: state.update(extra=torch.zeros(2)), r"extra: float32 \[2\], expected no weight of this name"),
        (
            lambda state: state.update({"conv.bias": torch.zeros(2)}),
            r"conv.bias: float32 \[2\], expected float32 \[1\]",
        ),
        (lambda state: state.update({"conv.bias": torch.zeros(1).double()}), r"conv.bias: float64 \[1\], expected"),
    ],
)
def test_other_names_shapes_and_dtypes_are_refused(change: Callable[[dict[str, Any]], object], message: str) -> None:
    model, x = Conv(), torch.rand(1, 1, 3, 3)
    traced = tracing.trace(model, x, inline_weights_to_neff=False, backend="eager")
    before, state = traced(x), Conv().state_dict()
    change(state)

    with pytest.raises(ValueError, match=message):
        tracing.replace_weights(traced, state)

    assert torch.equal(traced(x), before)


def test_the_trace_keeps_a_copy_of_the_new_weights() -> None:
    other, x = Conv(), torch.rand(1, 1, 3, 3)
    traced = tracing.trace(Conv(), x, inline_weights_to_neff=False, backend="eager")
    tracing.replace_weights(traced, other)
    before = traced(x)

    nn.init.zeros_(other.conv.weight)

    assert torch.equal(traced(x), before)
