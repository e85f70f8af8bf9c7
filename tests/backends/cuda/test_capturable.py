from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from computed import Computed
from graph_device import GraphDevice
from torch import Tensor
from torch.nn import functional

from torchserve_neuron_lstm.backends.cuda.capturable import capture_refusal
from torchserve_neuron_lstm.backends.cuda.engine import Cuda, load_on_device
from torchserve_neuron_lstm.backends.exported_tensors import weights_of
from torchserve_neuron_lstm.backends.interface import CompileError

Function = Callable[[Tensor], object]

X = torch.rand(3, 4, 4, generator=torch.Generator().manual_seed(0)) + 2 * torch.eye(4)

READS: dict[str, Function] = {
    "aten.item": lambda x: x * x.max().item(),
    "aten.linalg_inv": torch.linalg.inv,
    "aten.inverse": torch.inverse,
    "aten.linalg_solve": lambda x: torch.linalg.solve(x, x),
    "aten.linalg_cholesky": torch.linalg.cholesky,
    "aten.cholesky": torch.cholesky,
    "aten.linalg_lu_factor": torch.linalg.lu_factor,
    "aten.linalg_ldl_factor": torch.linalg.ldl_factor,
    "aten.linalg_eig": torch.linalg.eig,
    "aten.linalg_eigvals": torch.linalg.eigvals,
    "aten.linalg_eigh": torch.linalg.eigh,
    "aten.linalg_eigvalsh": torch.linalg.eigvalsh,
    "aten.linalg_svd": torch.linalg.svd,
    "aten.linalg_svdvals": torch.linalg.svdvals,
    "aten.linalg_pinv": torch.linalg.pinv,
    "aten.linalg_matrix_rank": torch.linalg.matrix_rank,
    "aten.linalg_matrix_power": lambda x: torch.linalg.matrix_power(x, -1),
    "aten.linalg_matrix_exp": torch.linalg.matrix_exp,
    "aten.linalg_matrix_norm": lambda x: torch.linalg.matrix_norm(x, ord=2),
    "aten.linalg_inv_ex": lambda x: torch.linalg.inv_ex(x, check_errors=True)[0],
    "aten.nanmedian": torch.nanmedian,
    "aten.histc": lambda x: torch.histc(x, 5),
    "aten.multinomial": lambda x: torch.multinomial(x[0], 2),
    "aten.isin": lambda x: torch.isin(x, x[0]),
    "aten.linspace": lambda x: torch.linspace(x[0, 0, 0], x[0, 0, 1], 5),
    "aten.segment_reduce": lambda x: torch.segment_reduce(x[0], "sum", lengths=torch.tensor([1, 3])),
}
HAS_NEW_SIZE: dict[str, Function] = {
    "aten.nonzero": lambda x: torch.nonzero(x).sum(),
    "aten.argwhere": lambda x: torch.argwhere(x).sum(),
    "aten.where": lambda x: torch.where(x > 0)[0].sum(),
    "aten.masked_select": lambda x: torch.masked_select(x, x > 0).sum(),
    "aten._unique2": lambda x: torch.unique(x).sum(),
    "aten.unique_consecutive": lambda x: torch.unique_consecutive(x).sum(),
    "aten.bincount": lambda x: torch.bincount(x.long().flatten(), minlength=4),
    "aten.repeat_interleave": lambda x: torch.repeat_interleave(x[0, 0], x[0, 1].long()).sum(),
}
SELECTS: dict[str, Function] = {
    "aten.index": lambda x: x[x > 0].sum(),
    "aten.index_put_": lambda x: x.clone().index_put_((x[:, :, 0] > 0,), torch.ones(4)),
}
CAN_BE_CAPTURED: dict[str, Function] = {
    "repeats of a given sum": lambda x: torch.repeat_interleave(x[0, 0], torch.tensor([0, 1, 2, 1]), output_size=4),
    "one number of repeats": lambda x: torch.repeat_interleave(x, 3, dim=1),
    "an inverse without a check": lambda x: torch.linalg.inv_ex(x)[0],
    "a solution without a check": lambda x: torch.linalg.solve_ex(x, x)[0],
    "a decomposition that cannot fail": torch.linalg.qr,
    "a norm that needs no singular values": lambda x: torch.linalg.matrix_norm(x, ord=1),
    "a determinant": torch.linalg.slogdet,
    "a histogram of a given range": lambda x: torch.histc(x, 5, 0, 4),
    "few values to find": lambda x: torch.isin(x, x[0, 0]),
    "a quantile": lambda x: torch.quantile(x, 0.5, dim=1),
    "a median": torch.median,
    "places by number": lambda x: x[torch.arange(3), x[:, 0, 0].long()],
    "a mask": lambda x: x.masked_fill(x > 1, 0.0),
    "attention": lambda x: functional.scaled_dot_product_attention(x, x, x),
}


def exported(function: Function) -> torch.export.ExportedProgram:
    """The function at fixed sizes, with all operators as the model wrote them."""
    return torch.export.export(Computed(function), (X,), strict=False)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("name", "function", "reason"),
    [
        *((name, function, "reads a value of a tensor") for name, function in READS.items()),
        *((name, function, "returns a size that depends on data") for name, function in HAS_NEW_SIZE.items()),
        *((name, function, "selects by a mask") for name, function in SELECTS.items()),
    ],
    ids=[*READS, *HAS_NEW_SIZE, *SELECTS],
)
def test_a_call_that_waits_for_the_gpu_is_refused_when_packaging(
    name: str, function: Function, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(CompileError, match=rf"{name}\.\w+ {reason}.*partitioner_config: {{}}.*another backend"):
        Cuda().compile(exported(function), None, tmp_path)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("function", CAN_BE_CAPTURED.values(), ids=[*CAN_BE_CAPTURED])
@torch.no_grad()
def test_a_similar_call_that_does_not_wait_is_captured(function: Function, tmp_path: Path) -> None:
    program = exported(function)
    Cuda().compile(program, None, tmp_path)
    run = load_on_device(GraphDevice(), {"sequence": tmp_path}, weights_of(program))["sequence"]
    expected = torch.utils._pytree.tree_leaves(function(X))

    for ours, theirs in zip(run([X]), expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5, rtol=1e-5)


def test_one_hot_of_a_given_number_of_classes_can_be_captured(tmp_path: Path) -> None:
    """On a GPU nothing is checked on the host. The double cannot run it: a CPU reads the largest id."""
    program = exported(lambda x: functional.one_hot(x.long(), 5))
    Cuda().compile(program, None, tmp_path)

    assert [capture_refusal(node) for node in program.graph.nodes if node.op == "call_function"].count(None) >= 2


def test_sizes_that_nobody_knows_refuse_no_later_call() -> None:
    """The call that made them is to blame, unless a later one waits as well."""
    program = exported(lambda x: x[x > 1].reshape(-1).sort()[0].sum())
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    refused = [str(node.target) for node in calls if capture_refusal(node) is not None]

    assert refused == ["aten.index.Tensor"]
