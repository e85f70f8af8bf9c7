"""The recurrent library for arm64, run under an emulator, equals torch's layers for each row.

`make test-arm64` runs it. Speed is not told: the emulator has none of the processor's.
"""

import shutil
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
import torch
from native_layers import CELLS, Batch, Shape, alone, batch_for, error
from torch import Tensor, nn

from torchserve_neuron_lstm.backends.native import build
from torchserve_neuron_lstm.backends.native.packing import pack_linear, pack_recurrence
from torchserve_neuron_lstm.backends.target_machine import _TARGETS

COMPILER, EMULATOR = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
LIBRARIES = "/usr/aarch64-linux-gnu"
pytestmark = [
    pytest.mark.skipif(
        COMPILER is None or EMULATOR is None,
        reason="not run: it needs the packages g++-aarch64-linux-gnu and qemu-user",
    ),
    pytest.mark.xdist_group("arm64"),
]


@dataclass(frozen=True)
class Driver:
    """The program around the library, and the layout of its weights."""

    program: Path
    lanes: int
    product_block: int
    interleaved: Sequence[int]

    def run(self, kind: str, threads: int, content: bytes) -> Tensor:
        command = [str(EMULATOR), "-L", LIBRARIES, str(self.program), kind, str(threads)]
        done = subprocess.run(command, input=content, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        return torch.frombuffer(bytearray(done.stdout), dtype=torch.float32)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    program = tmp_path_factory.mktemp("arm64") / "driver"
    sources = [str(Path(__file__).with_name("driver.cpp")), str(build.SOURCE)]
    target = f"-march={_TARGETS['aarch64'].isa}"
    headers = ["-I", str(Path(__file__).parents[1] / "support")]
    flags = ["-std=c++17", "-O3", "-pthread", target, "-ffp-contract=fast", "-Wall", "-Werror", *headers]
    subprocess.run([str(COMPILER), *flags, *sources, "-o", str(program)], check=True)
    told = subprocess.run([str(EMULATOR), "-L", LIBRARIES, str(program)], capture_output=True, text=True, check=True)
    lanes, block, *interleaved = map(int, told.stdout.split())
    return Driver(program, lanes, block, interleaved)


def array(tensor: Tensor | None) -> bytes:
    if tensor is None:
        return struct.pack("<q", 0)
    return struct.pack("<q", tensor.numel()) + bytes(tensor.contiguous().numpy().tobytes())


def layers_of(driver: Driver, shape: Shape, core: nn.RNNBase, batch: Batch, threads: int) -> list[Tensor]:
    weights = [core.get_parameter(name).detach() for name in core._flat_weights_names]
    each = len(weights) // (shape.layers * shape.directions)
    interleave = driver.interleaved[CELLS.index(shape.cell)]
    packed = [
        part
        for first in range(0, len(weights), each)
        for part in pack_recurrence(shape.cell, weights[first : first + each], driver.lanes, interleave)
    ]
    rows, steps = batch.x.shape[:2]
    sizes = (shape.inputs, shape.hidden, shape.projected, rows, steps)
    header = (CELLS.index(shape.cell), shape.layers, shape.directions, *sizes)
    arrays = [batch.lengths, *packed, batch.x, batch.h_0, batch.c_0]
    flat = driver.run("layers", threads, struct.pack("<8q", *header) + b"".join(map(array, arrays)))
    found = [(rows, steps, shape.directions * batch.h_0.shape[2]), batch.h_0.shape]
    found += [batch.c_0.shape] if batch.c_0 is not None else []
    parts = flat.split([torch.Size(size).numel() for size in found])
    return [part.view(size) for part, size in zip(parts, found, strict=True)]


SHAPES = [
    *(
        Shape(cell, inputs=5, hidden=hidden, layers=layers, directions=directions, bias=hidden != 7)
        for cell, hidden, layers, directions in product(CELLS, (1, 4, 7, 33), (1, 3), (1, 2))
    ),
    *(Shape(inputs=5, hidden=33, layers=2, directions=2, projected=projected) for projected in (1, 6, 16, 23)),
]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_layers_equal_every_row_alone(driver: Driver, shape: Shape, threads: int) -> None:
    batch = batch_for(shape, [9, 0, 4, 9, 1, 7], 9, garbage=float("nan"))
    core = shape.core()

    assert error(layers_of(driver, shape, core, batch, threads), alone(core, batch)) <= 2e-6


@pytest.mark.parametrize("lengths", [None, [3, 0, 5, 1]])
@pytest.mark.parametrize("outputs", [1, 4, 31, 70])
def test_a_linear_layer_equals_torchs(driver: Driver, outputs: int, lengths: list[int] | None) -> None:
    layer = nn.Linear(6, outputs)
    x = torch.randn(4, 5, 6)
    real = None if lengths is None else torch.tensor(lengths)
    if real is not None:
        x = torch.where((torch.arange(5)[None, :] < real[:, None])[:, :, None], x, 0.0)
    weights, bias = pack_linear(layer.weight.detach(), layer.bias.detach(), driver.product_block)
    content = struct.pack("<4q", 6, outputs, 4, 5) + b"".join(map(array, [real, weights, bias, x]))

    ours = driver.run("product", 2, content).view(4, 5, outputs)
    torch.testing.assert_close(ours, layer(x).detach(), atol=2e-6, rtol=1e-5)


def test_the_vectors_are_those_of_neon(driver: Driver) -> None:
    assert driver.lanes == 4
