"""trace(): a traced function equals the function on every engine, for the shapes of the example only."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from traceable import Conv, PackedTagger, double_and_add

from torchserve_neuron_lstm import tracing
from torchserve_neuron_lstm.backends import cpp_compiler
from torchserve_neuron_lstm.backends.interface import CompileError, LoadError
from torchserve_neuron_lstm.backends.native import build
from torchserve_neuron_lstm.backends.native.instruction_sets import instruction_sets
from torchserve_neuron_lstm.backends.registry import get_backend
from torchserve_neuron_lstm.lowering.errors import LoweringError
from torchserve_neuron_lstm.tracing import engines as engine_choice
from torchserve_neuron_lstm.tracing.engines import select_engines
from torchserve_neuron_lstm.tracing.options import TraceOptions


@pytest.mark.ci
def test_one_process_compiles_the_recurrent_library_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, told = tmp_path / "compiler", tmp_path / "told"
    # Without optimization they compile in less than half of the time.
    compiler.write_text(f'#!/bin/sh\necho "$*" >> {told}\nexec {cpp_compiler.compiler()} "$@" -O0\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))

    for width in (2, 3):
        x = torch.rand(5, 1, width)
        model = nn.LSTM(width, 4).eval()
        answer = tracing.trace(model, x, backend="native")(x)
        with torch.no_grad():
            torch.testing.assert_close(answer, model(x))

    assert len([line for line in told.read_text().splitlines() if build.SOURCE.name in line]) == len(instruction_sets())


def test_a_function_is_traced_as_it_is() -> None:
    traced = tracing.trace(double_and_add, (torch.rand(3), torch.rand(3)), backend="eager")
    x, y = torch.rand(3), torch.rand(3)

    assert torch.equal(traced(x, y), 2 * x + y)


def test_auto_tries_fast_engines_first_and_only_those_that_take_the_options() -> None:
    names = [engine.name for engine in select_engines("auto", TraceOptions())]

    assert names == [name for name in ("inductor", "onnxruntime", "eager") if get_backend(name).unavailable() is None]
    taken = any("compiler_args" in get_backend(name).options for name in ("inductor", "onnxruntime", "eager"))
    with_arguments = select_engines("auto", TraceOptions(compiler_args="-O2")) if taken else []
    assert all("compiler_args" in engine.options for engine in with_arguments)


@pytest.mark.ci
def test_auto_goes_on_to_the_next_engine_where_one_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX has no LU decomposition, eager has."""
    monkeypatch.setattr(engine_choice, "auto_engines", lambda purpose: ("onnxruntime", "eager"))
    square = torch.rand(3, 3)

    traced = tracing.trace(upper, square)

    assert traced.description.backend == "eager"
    torch.testing.assert_close(traced(square), upper(square))


def upper(a: torch.Tensor) -> torch.Tensor:
    factor: torch.Tensor = torch.linalg.lu(a)[2]
    return factor


def test_a_module_keeps_its_mode_and_its_forward() -> None:
    model = PackedTagger().train()
    model.out.eval()

    traced = tracing.trace(model, (torch.rand(2, 3, 4), torch.tensor([3, 2])), backend="eager")

    assert model.training
    assert model.lstm.training
    assert not model.out.training
    assert "forward" not in vars(model)
    same = torch.rand(2, 3, 4), torch.tensor([3, 2])
    assert torch.equal(traced(*same), traced(*same))


def test_later_changes_of_the_module_change_no_trace() -> None:
    model, x = Conv(), torch.rand(1, 1, 3, 3)
    traced = tracing.trace(model, x, backend="eager")
    before = traced(x)

    nn.init.zeros_(model.conv.weight)

    assert torch.equal(traced(x), before)


def test_arguments_and_answers_keep_their_structure() -> None:
    def swap(pair: tuple[torch.Tensor, torch.Tensor], z: torch.Tensor) -> dict[str, object]:
        return {"sum": pair[0] + z, "rest": [pair[1]]}

    a, b, z = torch.rand(2), torch.rand(3), torch.rand(2)
    traced = tracing.trace(swap, ((a, b), z), backend="eager")

    answer = traced((a, b), z)

    assert torch.equal(answer["sum"], a + z)
    assert torch.equal(answer["rest"][0], b)
    with pytest.raises(tracing.WrongInput, match=r"called with \(tensor, tensor\), but traced with \(\(tensor, tensor"):
        traced(a, z)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "model", [nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.RReLU(), nn.AlphaDropout()]
)
def test_what_is_random_in_training_alone_is_taken(model: nn.Module) -> None:
    x = torch.rand(2, 3, 4)

    answer = tracing.trace(model, x, backend="eager")(x)

    with torch.no_grad():
        torch.testing.assert_close(answer, model.eval()(x))


def test_the_keys_of_a_dict_may_be_given_in_any_order() -> None:
    traced = tracing.trace(lambda of: of["a"] - of["b"], ({"a": torch.zeros(2), "b": torch.zeros(2)},), backend="eager")

    assert traced({"b": torch.ones(2), "a": torch.zeros(2)}).tolist() == [-1, -1]
    with pytest.raises(tracing.WrongInput, match=r"called with .*'c': tensor.* but traced with .*'b': tensor"):
        traced({"a": torch.zeros(2), "c": torch.zeros(2)})


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([torch.rand(4), torch.rand(3)], r"input 'x' is float32 \[4\], but the program was compiled for float32 \[3\]"),
        ([torch.rand(3), torch.rand(3).double()], r"input 'y' is float64 \[3\]"),
        ([torch.rand(3)], r"called with \(tensor,\)"),
        ([torch.rand(3), 1.0], r"takes tensors on the CPU, not 1.0"),
        ([torch.rand(3), torch.rand(3, device="meta")], r"not a tensor on meta"),
    ],
)
def test_other_shapes_dtypes_and_things_are_refused(given: list[torch.Tensor], message: str) -> None:
    traced = tracing.trace(double_and_add, (torch.rand(3), torch.rand(3)), backend="eager")

    with pytest.raises(tracing.WrongInput, match=message):
        traced(*given)


def test_answers_ask_for_no_gradient_and_inputs_may() -> None:
    traced = tracing.trace(double_and_add, (torch.rand(3), torch.rand(3)), backend="eager")

    assert not traced(torch.rand(3, requires_grad=True), torch.rand(3)).requires_grad


class Counting(nn.Module):
    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x + self.count


def changes_input(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2


@pytest.mark.parametrize(
    ("func", "message"),
    [
        (Counting(), "the function changes 'count' in place: return the new value"),
        (changes_input, "the function changes 'x' in place"),
        (lambda x: x if x.sum() > 0 else -x, "depend on the values of its inputs.*test_trace.py"),
        (
            lambda x: x.nonzero(),
            r"the shape of the output of aten.nonzero.default .*depends on the values of the inputs",
        ),
        (lambda x: torch.dropout(x, 0.5, train=True), r"aten\.dropout \(at test_trace.*\) is random in eval mode too"),
        (
            lambda x: torch.alpha_dropout(x, 0.5, train=True),
            r"aten\.alpha_dropout \(at test_trace.*\) is random in eval mode too",
        ),
        (lambda x: (x, 3), r"the function returns a int \(3\)"),
        (lambda x: (), "the function returns no tensor"),
        (lambda x: x @ torch.rand(7, 7), "could not be traced.*test_trace.py"),
    ],
)
def test_what_cannot_be_a_program_is_refused(func: Any, message: str) -> None:
    with pytest.raises(LoweringError, match=message):
        tracing.trace(func, torch.rand(3), backend="eager")


@pytest.mark.parametrize("example", [3, (torch.rand(2), "x"), (torch.rand(2), torch.rand(2, device="meta"))])
def test_an_example_is_tensors_on_the_cpu(example: object) -> None:
    with pytest.raises(TypeError, match="example_inputs must be tensors on the CPU"):
        tracing.trace(double_and_add, example, backend="eager")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"compiler_args": "-O2", "backend": "eager"}, ValueError, "compiler_args: not supported by eager"),
        ({"backend": "gpu"}, LoadError, r"there is no backend 'gpu'\. Available:"),
    ],
)
def test_an_option_that_no_engine_has_is_refused(options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        tracing.trace(double_and_add, (torch.rand(3), torch.rand(3)), **options)


def test_arguments_with_an_open_quotation_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^compiler_args: expected arguments as a shell takes them, got .*quotation"):
        TraceOptions(compiler_args="--target 'trn1")


@pytest.mark.ci
def test_an_operator_that_the_engine_lacks_is_named() -> None:
    """ONNX has no LU decomposition."""
    with pytest.raises(CompileError, match=r"aten::linalg_lu|aten::linalg_solve|aten::_linalg"):
        tracing.trace(upper, torch.rand(3, 3), backend="onnxruntime")


@pytest.mark.few(1)
@pytest.mark.parametrize("backend", ["native", "onnxruntime"])
def test_torch_keeps_its_threads(backend: str) -> None:
    """Engines set the number of threads for workers; here it is restored."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        tracing.trace(double_and_add, (torch.rand(3), torch.rand(3)), backend=backend)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
