import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from computed import Computed
from torch import nn

from torchserve_neuron_lstm.archiver_ext.evaluation import lowest_torch as module
from torchserve_neuron_lstm.archiver_ext.evaluation.lowest_torch import lowest_torch
from torchserve_neuron_lstm.backends.program_source.write import program_source
from torchserve_neuron_lstm.backends.versions import LOWEST_TORCH, release, torch_version

TABLE = Path(module.__file__).with_name("operators_since.json")


def attention(x: torch.Tensor, **options: Any) -> torch.Tensor:
    heads = x.view(2, 4, 3, 2)
    return nn.functional.scaled_dot_product_attention(heads, heads, heads, **options)


@pytest.mark.parametrize(
    ("function", "lowest"),
    [
        (torch.erf, None),
        (lambda x: nn.functional.linear(x, x).softmax(-1) + 1, None),
        (lambda x: nn.functional.rms_norm(x, [6]), "2.4.0"),
        (attention, None),
        (lambda x: attention(x, enable_gqa=True), "2.5.0"),
    ],
    ids=["erf", "as old as all", "a newer operator", "an operator with an older form", "with a newer argument"],
)
def test_a_program_needs_the_release_that_has_its_calls(
    function: Callable[[torch.Tensor], torch.Tensor], lowest: str | None
) -> None:
    program = torch.export.export(Computed(function), (torch.randn(8, 6),))

    assert lowest_torch(program_source(program), torch_version()) == lowest


@pytest.mark.parametrize("function", [torch.erf, torch.tanh], ids=["an operator", "a function in its place"])
def test_a_program_of_a_torch_that_the_table_lacks_needs_that_one(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    source = program_source(torch.export.export(Computed(function), (torch.randn(8, 6),)))

    assert lowest_torch(source, "9.9.0") == "9.9.0"


def test_operators_without_published_schemas_need_the_torch_that_wrote_the_program() -> None:
    source = "def program(tensors):\n    prims_cos = torch.ops.prims.cos.default\n    return prims_cos(1)\n"

    assert lowest_torch(source, "2.13.0") == "2.13.0"


def test_the_table_begins_with_the_lowest_torch_and_knows_the_one_here() -> None:
    """Otherwise `python -m tools.operators` is due."""
    table = json.loads(TABLE.read_text("utf-8"))

    assert release(table["oldest"])[:2] == release(LOWEST_TORCH)[:2]
    assert release(table["newest"]) >= release(torch_version())
