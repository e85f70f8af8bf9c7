from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from computed import Computed
from recurrent import exported

from torchserve_neuron_lstm.backends.exported_tensors import weights_of
from torchserve_neuron_lstm.backends.interface import CompileError
from torchserve_neuron_lstm.backends.openvino import OpenVino
from torchserve_neuron_lstm.backends.registry import get_backend

LARGEST = 2**63 - 1
VALUES = {
    "small": (0, 8),
    "of both signs": (-9, 9),
    "seconds": (1_700_000_000, 1_700_009_999),
    "milliseconds": (1_700_000_000_000, 1_700_000_009_999),
    "beyond float64": (2**53, 2**53 + 99),
    "all": (-LARGEST, LARGEST),
}


def arithmetic(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    divisor = x.abs() // 3 + 1
    rounded = [torch.div(x, y, rounding_mode=mode) for y in (7, -7, 3600, divisor) for mode in ("floor", "trunc")]
    sums = [x.sum(1), x.sum(1, keepdim=True), x.sum(-1, dtype=torch.int32), x.int().sum(1), (x > 3).sum(1)]
    powers = [x**2, x**5, x.to(torch.uint8) ** 3]
    narrow = [x.to(torch.uint8) + 100, x.to(torch.int16) * 7, torch.div(x.int(), 7, rounding_mode="trunc")]
    others = [x // 3600, x % 24, torch.fmod(x, 24), x.cumsum(1), x.amax(1), x.argmax(1), x >> 3, x == x[:, :1], -x]
    bools = [torch.div(x > 3, 2, rounding_mode="floor")]
    return (*rounded, *sums, *powers, *narrow, *others, *bools)


@pytest.mark.ci
def test_onnxruntime_computes_integers_of_any_size_as_torch_does(tmp_path: Path) -> None:
    module, engine = Computed(arithmetic), get_backend("onnxruntime")
    program = exported(module, torch.ones(2, 5, dtype=torch.int64))
    engine.compile(program, None, tmp_path)
    run = engine.load(tmp_path, weights_of(program), {}, threads=1)
    generator = torch.Generator().manual_seed(0)

    for kind, bounds in VALUES.items():
        for timesteps in (6, 1):
            x = torch.randint(*bounds, (3, timesteps), generator=generator)
            for index, (ours, theirs) in enumerate(zip(run([x]), module(x), strict=True)):
                assert torch.equal(ours, theirs), (kind, timesteps, index)


def test_onnxruntime_sums_no_integers_to_0(tmp_path: Path) -> None:
    engine = get_backend("onnxruntime")
    program = exported(Computed(lambda x: (x[:, :0].sum(1),)), torch.ones(2, 5, dtype=torch.int64))
    engine.compile(program, None, tmp_path)

    assert engine.load(tmp_path, weights_of(program), {}, threads=1)([torch.ones(3, 4).long()])[0].tolist() == [0] * 3


def test_onnxruntime_sums_complex_numbers_with_both_parts(tmp_path: Path) -> None:
    model = Computed(lambda x: (torch.view_as_real(torch.fft.rfft(x, dim=2).sum(2)),))
    x, engine = torch.randn(2, 5, 4), get_backend("onnxruntime")
    program = exported(model, x)
    engine.compile(program, None, tmp_path)

    torch.testing.assert_close(engine.load(tmp_path, weights_of(program), {}, threads=1)([x])[0], model(x)[0])


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: x.prod(1), "prod"),
        (lambda x: x.cumprod(1), "cumprod"),
        (lambda x: 2 ** (x % 5), "pow"),
        (lambda x: x**65, "pow"),
        (lambda x: (x > 3) ** 2, "pow"),
    ],
)
def test_what_would_be_computed_in_floating_point_is_refused(
    function: Callable[[torch.Tensor], torch.Tensor], name: str, tmp_path: Path
) -> None:
    model = Computed(lambda x: (function(x),))
    with pytest.raises(CompileError, match=f"{name} of integers is computed in floating point"):
        get_backend("onnxruntime").compile(exported(model, torch.ones(2, 5, dtype=torch.int64)), None, tmp_path)


def test_openvino_refuses_float64(tmp_path: Path) -> None:
    model = Computed(lambda x: ((x - x[:, :1]).float(),))
    with pytest.raises(CompileError, match="computes float64 in float32: use another backend"):
        OpenVino().compile(exported(model, torch.ones(2, 5, dtype=torch.float64)), None, tmp_path)
