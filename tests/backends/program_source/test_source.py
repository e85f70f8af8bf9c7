from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchserve_neuron_lstm.backends.exported_tensors import weights_of
from torchserve_neuron_lstm.backends.interface import CompileError, LoadError
from torchserve_neuron_lstm.backends.program_source.read import FILE_NAME, load_source, read_source
from torchserve_neuron_lstm.backends.program_source.write import program_source

AUTO = torch.export.Dim.AUTO


class Model(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.w = nn.Parameter(torch.arange(6.0).view(2, 3))

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def exported(function: Callable[..., Any]) -> torch.export.ExportedProgram:
    x = torch.randn(4, 5, 3)
    return torch.export.export(Model(function).eval(), (x,), dynamic_shapes=({0: AUTO, 1: AUTO},), strict=False)


def loaded(program: torch.export.ExportedProgram) -> Callable[..., Any]:
    return load_source(program_source(program), weights_of(program))


def autocast(model: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y: Tensor = x @ model.w.t()
    return y


def without_gradients(model: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        y: Tensor = x @ model.w.t()
    return y + 1


def branched(model: Any, x: Tensor) -> Tensor:
    def inner(y: Tensor) -> Tensor:
        result: Tensor = torch.cond(y.sum() > 9, lambda y: y - 1, lambda y: y.exp(), (y,))
        return result

    result: Tensor = torch.cond(x.sum() > 0, inner, lambda y: y * 3, (x,))
    return result


def scanned(model: Any, x: Tensor) -> list[Tensor]:
    """Sums over time, and the state after each timestep."""

    def step(state: Tensor, now: Tensor, w: Tensor) -> list[Tensor]:
        state = torch.tanh(state + now @ w.t() @ w)
        return [state, state.clone()]

    return list(torch.ops.higher_order.scan(step, [x[:, 0].clone()], [x.transpose(0, 1)], (model.w,)))


def looped(model: Any, x: Tensor) -> Any:
    from torch._higher_order_ops.while_loop import while_loop

    return while_loop(lambda y: y.abs().sum() < 100, lambda y: (y * 2,), (x,))


FUNCTIONS: dict[str, Callable[[Any, Tensor], Any]] = {
    "layers": lambda model, x: nn.functional.linear(x, model.w).softmax(-1),
    "sizes": lambda model, x: x.reshape(x.shape[0] * x.shape[1], -1).sum() / (x.shape[1] // 2 + x.shape[0] * 2 - 1),
    "size as a value": lambda model, x: x * (x.shape[1] + 1) + torch.arange(x.shape[1]).view(1, -1, 1),
    "the larger size": lambda model, x: x.new_zeros(torch.sym_max(x.shape[0], x.shape[1])),
    "infinite constants": lambda model, x: x.masked_fill(x > 0, float("-inf")).clamp(max=1e9, min=-float("inf")),
    "several results": lambda model, x: x.sort(1),
    "a list of results": lambda model, x: x.split([1, 2], 2),
    "changed in place": lambda model, x: x.clone().add_(1).mul_(2),
    "constants of a dtype": lambda model, x: torch.full((2,), 3, dtype=torch.int32) + torch.zeros(2).to(torch.float64),
    "a tensor in the code": lambda model, x: x * torch.tensor([1.0, 2.0, 3.0]),
    "the weight itself": lambda model, x: (model.w, x),
    "autocast": autocast,
    "without gradients": without_gradients,
    "a branch": branched,
    "a scan": scanned,
    "a loop": looped,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@torch.no_grad()
def test_a_source_answers_as_its_program_does(name: str) -> None:
    program = exported(FUNCTIONS[name])
    run, model = loaded(program), program.module()

    for rows, steps in ((4, 5), (2, 7), (7, 2)):
        for x in (torch.randn(rows, steps, 3), torch.randn(rows, steps, 3).abs()):
            ours, theirs = run(x), model(x)
            theirs = [theirs] if isinstance(theirs, Tensor) else theirs
            for mine, other in zip(ours, theirs, strict=True):
                torch.testing.assert_close(mine, other, atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["torch", "math", "forward", "program", "tensors", "lstm", "scan", "aten_add_Tensor"])
@torch.no_grad()
def test_an_input_may_have_any_name(name: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def forward(self, {name}):\n    return {name} + {name}.shape[0]", scope)
    model = type("Named", (nn.Module,), {"forward": scope["forward"]})()
    program = torch.export.export(model, (torch.ones(4, 3),), dynamic_shapes=({0: AUTO},), strict=False)

    assert torch.equal(loaded(program)(torch.ones(2, 3))[0], torch.full((2, 3), 3.0))


@torch.no_grad()
def test_a_value_is_freed_after_its_last_use() -> None:
    """As torch's own graphs do; values may be large."""
    source = program_source(exported(lambda model, x: ((x + 1) * 2).exp() + x))

    assert "; del add" in source
    assert "; del mul" in source
    assert "; del exp" in source
    assert "del x" not in source


def test_a_function_that_is_no_operator_is_refused_by_name() -> None:
    """Source would not find it."""
    program = exported(lambda model, x: x + 1)
    for node in program.graph.nodes:
        if node.op == "call_function":
            node.target = print

    with pytest.raises(CompileError, match=r"calls <built-in function print>, which cannot be written as source"):
        program_source(program)


@pytest.mark.parametrize("damaged", ["", "def program(tensors):\n    return None +", "\0", "raise ValueError('x')"])
def test_damaged_source_is_refused(damaged: str, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"some\.py is damaged \(.*\): package the model again"):
        load_source(damaged, {}, path=tmp_path / "some.py")


def test_a_torch_without_an_operator_is_told() -> None:
    """The archive's requirements name the release that has it."""
    source = "def program(tensors):\n    aten_new = torch.ops.aten.not_yet_known.default\n    return aten_new\n"

    with pytest.raises(LoadError, match=r"torch .* lacks an operator of the program \(.*not_yet_known.*\): install"):
        load_source(source, {})


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_missing_or_unreadable_file_is_refused(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / FILE_NAME).write_bytes(content)

    with pytest.raises(LoadError, match=r"program\.py is missing or damaged \(.*\): package the model again"):
        read_source(tmp_path)


@pytest.mark.parametrize("kind", [LoadError, MemoryError])
def test_what_an_engine_raises_while_it_makes_a_layer_is_not_taken_for_damage(kind: type[Exception]) -> None:
    """A library's own message says more."""

    def layer() -> None:
        raise kind("out of something")

    with pytest.raises(kind, match=r"^out of something$"):
        load_source("def program(tensors):\n    layer()\n", {}, {"layer": layer})


def test_memory_that_torch_does_not_get_is_not_taken_for_damage() -> None:
    """Torch raises the same type for whatever else is wrong."""
    source = "def program(tensors):\n    return torch.empty(1 << 60)\n"

    with pytest.raises(MemoryError, match="out of memory for the weights of a program"):
        load_source(source, {})
