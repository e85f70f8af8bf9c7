"""Orders over time on the engines: values run on all of them, places of equal values as torch has them on some."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from torchserve_neuron_lstm.backends.cuda.capturable import capture_refusal
from torchserve_neuron_lstm.backends.exported_tensors import weights_of
from torchserve_neuron_lstm.backends.interface import Backend, CompileError
from torchserve_neuron_lstm.backends.partitioning.backend import PartitionedBackend
from torchserve_neuron_lstm.backends.registry import get_backend
from torchserve_neuron_lstm.bucketing.shapes import Bucket
from torchserve_neuron_lstm.config.partitioner import PartitionerConfig
from torchserve_neuron_lstm.lowering import lower
from torchserve_neuron_lstm.lowering.program import LoweredModel

from .test_indexing_rules import CONFIG, LENGTHS, half

pytestmark = pytest.mark.xdist_group("orders")  # each model is lowered once, for all engines
INFINITY = float("inf")
ONNX = ("onnxruntime", "openvino")


class Model(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(torch.relu(x) + 0.5 * x)


VALUES: dict[str, Callable[[Tensor], Tensor]] = {
    "ascending": lambda x: x.sort(1).values,
    "median": lambda x: x.median(1).values,
    "largest": lambda x: x.topk(half(x), 1).values,
    "smallest": lambda x: x.topk(half(x), 1, largest=False).values,
    "median of numbers": lambda x: x.nanmedian(1).values,
    "middle": lambda x: x.kthvalue(half(x), 1).values,
    "descending": lambda x: x.sort(1, descending=True).values,
    "median of all": lambda x: x.median().reshape(1),
}
PLACES: dict[str, Callable[[Tensor], Tensor]] = {
    "where the largest are": lambda x: x.round().topk(half(x), 1).indices,
    "order": lambda x: x.argsort(1),
    "where the median is": lambda x: x.round().median(1).indices,
    "most frequent": lambda x: x.round().mode(1).values,
}


@cache
def program(function: Callable[[Tensor], Tensor]) -> LoweredModel:
    return lower(Model(function), CONFIG)


def requests() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(1, length, 3, generator=generator) for length in LENGTHS]
    rows[0][0, 3], rows[1][0, :2, 1] = INFINITY, -INFINITY
    return rows


def assert_answers_of_requests_alone(
    engine: Backend, function: Callable[[Tensor], Tensor], folder: Path, settings: PartitionerConfig | None = None
) -> None:
    exported = program(function).exported
    compiling = engine if settings is None else PartitionedBackend(engine, settings)
    compiling.compile(exported, None if compiling.polymorphic else Bucket(len(LENGTHS), LENGTHS[0]), folder)
    run = compiling.load(folder, weights_of(exported), engine.host(), 1)
    rows = requests()
    batch = torch.full((len(rows), LENGTHS[0], 3), 9.0)
    for row, x in zip(batch, rows, strict=True):
        row[: x.size(1)] = x[0]

    (answers,) = run([batch, torch.tensor(LENGTHS)])

    for x, answer in zip(rows, answers, strict=True):
        alone = Model(function)(x)[0]
        torch.testing.assert_close(answer[tuple(map(slice, alone.shape))], alone, equal_nan=True)


@pytest.mark.few(2)
@pytest.mark.parametrize("function", VALUES.values(), ids=VALUES.keys())
@pytest.mark.parametrize(
    "name", ["native", ONNX[0], *(pytest.param(name, marks=pytest.mark.long) for name in (ONNX[1], "inductor"))]
)
def test_values_in_order_run_on_every_engine(name: str, function: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    assert_answers_of_requests_alone(get_backend(name), function, tmp_path)


@pytest.mark.few(1)
@pytest.mark.parametrize("function", PLACES.values(), ids=PLACES.keys())
@pytest.mark.parametrize("name", ["native", pytest.param("inductor", marks=pytest.mark.long)])
def test_places_are_those_of_the_request_alone(name: str, function: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    assert_answers_of_requests_alone(get_backend(name), function, tmp_path)


@pytest.mark.few(2)
@pytest.mark.parametrize("function", PLACES.values(), ids=PLACES.keys())
@pytest.mark.parametrize("name", ONNX)
def test_places_are_refused_by_engines_of_onnx(name: str, function: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"^which of equal elements.*cannot be written.*backend, such as native"):
        get_backend(name).compile(program(function).exported, None, tmp_path)


@pytest.mark.ci
def test_places_are_computed_on_the_cpu_beside_an_engine_of_onnx(tmp_path: Path) -> None:
    function = PLACES["where the largest are"]

    assert_answers_of_requests_alone(get_backend("onnxruntime"), function, tmp_path, PartitionerConfig())


def test_places_are_no_part_of_a_cuda_graph() -> None:
    reasons = [capture_refusal(node) for node in program(PLACES["order"]).exported.graph.nodes if node.users]

    assert [reason for reason in reasons if reason] == [
        "neuron_lstm.positions.default waits for the lengths of the rows"
    ]
