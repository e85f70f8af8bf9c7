"""Flags, types and handlers of errors are the same for a model that is traced as in eager mode."""

import contextlib
import logging
import numbers
import pprint
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest
import torch
from input_configs import one_input
from torch import Tensor, nn

from torchserve_neuron_lstm.lowering import LoweringError, lower

CONFIG = one_input("[batch, time, 3]", length="[7, 24]")


class Model(nn.Module):
    def __init__(self, run: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gru = nn.GRU(3, 4, batch_first=True)
        self.run = [run]

    def forward(self, x: Tensor) -> Any:
        return self.run[0](self, x)


def flag_of_an_export(m: Model, x: Tensor) -> Any:
    return x.cumsum(1) if torch.compiler.is_exporting() else x.clamp(-30, 30).cumsum(1)


def flag_of_a_compiler(m: Model, x: Tensor) -> Any:
    jit: Any = torch.jit
    is_eager = not (torch.compiler.is_compiling() or jit.is_tracing() or jit.is_scripting())
    return x.clamp(-30, 30).cumsum(1) if is_eager else x.cumsum(1)


def type_of_a_number(m: Model, x: Tensor) -> Any:
    steps: Any = x.size(1)
    features: Any = 3
    own = type(steps) is int and type(features) is int and type(steps) in (int, float)
    return x.clamp(-30, 30).cumsum(1) if own else x.cumsum(1)


def integer(m: Model, x: Tensor) -> Any:
    kinds: list[Any] = [int, numbers.Integral, (str, numbers.Number), bool]
    own = [isinstance(x.size(1), kind) for kind in kinds] == [True, True, True, False]
    return x.clamp(-30, 30).cumsum(1) if own else x.cumsum(1)


@pytest.mark.parametrize("run", [flag_of_an_export, flag_of_a_compiler, type_of_a_number, integer])
def test_a_trace_takes_the_branch_of_eager_mode(run: Callable[..., Any]) -> None:
    model = Model(run).eval()
    x = torch.full((1, 3, 3), 100.0)

    answer = lower(model, CONFIG).exported.module()(x, torch.tensor([3]))[0]

    assert torch.equal(answer, model(x))
    assert answer[0, -1, 0] == 90


def test_a_branch_on_the_type_and_the_number_of_timesteps_is_seen() -> None:
    def long_ones(m: Model, x: Tensor) -> Any:
        steps: Any = x.size(1)
        return m.gru(x.clamp(-30, 30) if isinstance(steps, int) and steps > 20 else x)[0]

    with pytest.raises(LoweringError, match=r"takes a branch .* does not take .at \S+:\d+: .*steps > 20"):
        lower(Model(long_ones).eval(), CONFIG)


def branch_on_values(m: Model, x: Tensor) -> Any:
    try:
        if x.abs().max().item() > 50:
            x = x / 255
    except Exception:  # noqa: BLE001 - what such a model does
        pass
    return m.gru(x)[0]


def suppressed(m: Model, x: Tensor) -> Any:
    with contextlib.suppress(Exception):
        if x[0, 0, 0] > 5:
            x = x / 255
    return m.gru(x)[0]


def key_of_a_dictionary(m: Model, x: Tensor) -> Any:
    try:
        scale = {5: 2.0}[x.size(1)]
    except (KeyError, TypeError):
        scale = 1.0
    return m.gru(x)[0] * scale


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (branch_on_values, r"depend on the values of its inputs .at \S+:\d+: if x.abs"),
        (suppressed, r"depend on the values of its inputs .at \S+:\d+: if x.0, 0, 0"),
        (key_of_a_dictionary, r"catches an error of its trace .* .at \S+:\d+: scale = .5: 2.0"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_error_of_the_trace_that_the_model_catches_is_a_refusal(run: Callable[..., Any], reason: str) -> None:
    with pytest.raises(LoweringError, match=reason):
        lower(Model(run).eval(), CONFIG)


def test_an_error_that_eager_mode_catches_too_is_none() -> None:
    def without(m: Model, x: Tensor) -> Any:
        try:
            x = x.no_such_attribute  # type: ignore[attr-defined]  # which is caught
        except AttributeError:
            x = x * 2
        return m.gru(x)[0]

    model = Model(without).eval()
    x = torch.randn(1, 3, 3)
    with torch.no_grad():
        torch.testing.assert_close(lower(model, CONFIG).exported.module()(x, torch.tensor([3]))[0], model(x))


@lru_cache
def ramp(steps: int) -> Tensor:
    return torch.arange(steps).float()


def test_a_function_with_a_cache_takes_a_symbolic_size() -> None:
    def looked_up(m: Model, x: Tensor) -> Any:
        try:
            ramp(x.size(1))[0] = 5.0
        except TypeError:
            return x * 0
        return m.gru(x)[0] * ramp(x.size(1))[:, None]

    model, x = Model(looked_up).eval(), torch.randn(1, 19, 3)
    assert torch.allclose(lower(model, CONFIG).exported.module()(x, torch.tensor([19]))[0], model(x), atol=1e-5)


def text_of_a_tensor(m: Model, x: Tensor) -> Any:
    y = m.gru(x)[0]
    return y.clamp(min=0) if "nan" in f"{y}" else y


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (lambda m, x: m.gru(x)[0] * (2.0 if str(x.size(1)) == "19" else 1.0), "reads a size as a number"),
        (lambda m, x: m.gru(x)[0] + (1.0 if " 19," in f"{x.shape}" else 0.0), "reads a size as a number"),
        (lambda m, x: m.gru(x)[0] + getattr(m, f"table_{x.size(1) // 2}", 0.0), "reads a size as a number"),
        (lambda m, x: m.gru(x)[0] + ("19" in pprint.pformat([x.size(1)])), "reads a size as a number"),
        (text_of_a_tensor, "writes a tensor as text"),
    ],
    ids=["text of a size", "text of a shape", "name of a table", "joined by a library", "text of a tensor"],
)
def test_text_in_which_eager_mode_has_numbers_is_a_refusal(run: Callable[..., Any], reason: str) -> None:
    with pytest.raises(LoweringError, match=rf"{reason}.* .at \S+:\d+: "):
        lower(Model(run).eval(), CONFIG)


def test_logged_sizes_and_messages_of_assertions_fix_nothing() -> None:
    def logged(m: Model, x: Tensor) -> Any:
        logging.getLogger("model").warning("a request of %s", x.shape)
        assert x.size(2) == 3, f"features of {x.shape}"
        return m.gru(x)[0]

    model, x = Model(logged).eval(), torch.randn(1, 19, 3)
    assert torch.allclose(lower(model, CONFIG).exported.module()(x, torch.tensor([19]))[0], model(x), atol=1e-6)
