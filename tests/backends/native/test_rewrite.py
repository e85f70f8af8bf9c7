from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from input_configs import one_input
from native_layers import isas_here, pool
from recurrent import CASES, FEATURES, HIDDEN, Case, Recurrent, exported, largest_error, ragged_batch
from torch import Tensor, nn

from torchserve_neuron_lstm.backends.exported_tensors import weights_of
from torchserve_neuron_lstm.backends.native.layers import layer_functions
from torchserve_neuron_lstm.backends.native.rewrite import native_source
from torchserve_neuron_lstm.backends.program_source.read import load_source
from torchserve_neuron_lstm.lowering import lower

pytestmark = pytest.mark.xdist_group(f"kernel-{isas_here()[0]}")


class Loaded(NamedTuple):
    layers: list[str]
    """Names of the layers that the library computes."""
    run: Callable[..., Sequence[Tensor]]

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor]:
        return self.run(*inputs)


def loaded(program: torch.export.ExportedProgram) -> Loaded:
    source = native_source(program)
    return Loaded(
        sorted(source.layers), load_source(source.text, weights_of(program), layer_functions(pool(isas_here()[0], 2)))
    )


def rewritten(module: nn.Module, *inputs: Tensor) -> Loaded:
    return loaded(exported(module, *inputs))


@torch.no_grad()
def assert_equal(module: nn.Module, over: Loaded, *inputs: Tensor) -> None:
    theirs = module(*inputs)
    for mine, other in zip(over(*inputs), [theirs] if isinstance(theirs, Tensor) else theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=2e-6, rtol=1e-5)


def assert_rewritten(layers: list[str], module: nn.Module, *inputs: Tensor) -> Loaded:
    over = rewritten(module, *inputs)
    assert over.layers == layers
    assert_equal(module, over, *inputs)
    return over


class Over(nn.Module):
    def __init__(self, then: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.core = nn.GRU(FEATURES, HIDDEN, batch_first=True)
        self.linear, self.table = nn.Linear(HIDDEN, 3), nn.Linear(HIDDEN, 6000, bias=False)
        self.then = then

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        weights = [getattr(self.core, name) for name in self.core._flat_weights_names]
        h_0 = x.new_zeros(1, x.shape[0], HIDDEN)
        y, _ = torch.ops.neuron_lstm.rnn(x, lengths, h_0, weights, "gru", True, 1, False)
        return self.then(self, y)


@pytest.mark.few(8)
@pytest.mark.parametrize("case", CASES, ids=str)
@torch.no_grad()
def test_the_kernel_takes_every_recurrent_layer(case: Case) -> None:
    module = Recurrent(case).eval()
    over = rewritten(module, *ragged_batch(0.0))

    assert over.layers == ["recurrence"]
    for garbage in (0.0, float("nan")) if case.ragged else (0.0,):
        inputs = ragged_batch(garbage)
        assert largest_error(over(*inputs), module.alone(*inputs)) <= 1e-5


@torch.no_grad()
def test_double_precision_is_left_to_torch() -> None:
    """The recurrent library has single precision only; torch's answers are exact to the model's precision."""
    module = Recurrent(Case()).double().eval()
    x, lengths = ragged_batch(0.0)
    over = rewritten(module, x.double(), lengths)

    assert over.layers == []
    assert largest_error(over(x.double(), lengths), module.alone(x.double(), lengths)) <= 1e-12


def test_weights_that_the_program_computes_are_left_to_torch() -> None:
    """Their values are unknown before a call."""

    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.core = nn.GRU(FEATURES, HIDDEN)

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            weights = [getattr(self.core, name) * 0.5 for name in self.core._flat_weights_names]
            h_0 = x.new_zeros(1, x.shape[0], HIDDEN)
            y: Tensor = torch.ops.neuron_lstm.rnn(x, lengths, h_0, weights, "gru", True, 1, False)[0]
            return y

    assert_rewritten([], Normed().eval(), *ragged_batch(0.0))


THEN: dict[str, tuple[Callable[[Any, Tensor], Any], list[str]]] = {
    "linear of every timestep": (lambda m, y: m.linear(y), ["recurrence", "sequence_linear"]),
    "large linear of every timestep": (lambda m, y: m.table(y), ["recurrence", "sequence_linear"]),
    "dropout before it": (
        lambda m, y: m.linear(nn.functional.dropout(y, 0.5, training=False)),
        ["recurrence", "sequence_linear"],
    ),
    "small linear of one timestep": (lambda m, y: m.linear(y[:, 0]), ["recurrence"]),
    "large linear of one timestep": (lambda m, y: m.table(y[:, 0]), ["linear", "recurrence"]),
    "time first": (lambda m, y: m.linear(y.transpose(0, 1)), ["recurrence", "sequence_linear"]),
    "time first, as rows": (
        lambda m, y: (m.linear(y.transpose(0, 1)).view(-1, 3).sum(0), y),
        ["recurrence", "sequence_linear"],
    ),
    "as rows": (lambda m, y: m.linear(y).view(-1, 3).sum(0), ["recurrence", "sequence_linear"]),
    "changed in place": (lambda m, y: m.linear(y.add_(1.0)), ["recurrence"]),
    "linear with a dimension of size 1": (
        lambda m, y: m.linear(y.unsqueeze(1)).squeeze(1),
        ["recurrence", "sequence_linear"],
    ),
    "linear with exchanged dimensions": (
        lambda m, y: m.linear(y.unsqueeze(1).permute(0, 2, 1, -1)).permute(0, 2, 1, 3).squeeze(1),
        ["recurrence", "sequence_linear"],
    ),
    "linear with another last dimension": (
        lambda m, y: m.linear(y.unsqueeze(-1).permute(0, 1, 3, 2)).permute(0, 1, 3, 2).squeeze(-1),
        ["recurrence"],
    ),
    "linear over a dimension of size 1": (
        lambda m, y: nn.functional.linear(y.unsqueeze(-1), m.linear.weight[:, :1]).squeeze(-1),
        ["recurrence"],
    ),
    "sum with another": (lambda m, y: m.linear(y + 1.0), ["recurrence"]),
    "weights that are computed": (lambda m, y: nn.functional.linear(y, m.linear.weight * 2), ["recurrence"]),
    "a condition": (lambda m, y: torch.cond(y.sum() > 0, lambda y: y * 2.0, lambda y: y + 1.0, (y,)), ["recurrence"]),
}


@pytest.mark.few(6)
@pytest.mark.parametrize("name", THEN)
def test_what_comes_after_answers_as_before(name: str) -> None:
    then, wanted = THEN[name]
    torch.manual_seed(1)
    module = Over(then).eval()

    over = assert_rewritten(wanted, module, *ragged_batch(0.0))
    for batch, time in ((1, 1), (1, 9), (7, 1)):
        assert_equal(module, over, *ragged_batch(0.0, batch, time))


def _again(m: Any, y: Tensor) -> Tensor:
    """A recurrence over a linear layer of the outputs of another one."""
    x = m.between(y)
    weights = [getattr(m.core, name) for name in m.core._flat_weights_names]
    lengths, h_0 = torch.full_like(y[:, 0, 0], 1, dtype=torch.int64), x.new_zeros(1, x.shape[0], HIDDEN)
    z: Tensor = torch.ops.neuron_lstm.rnn(x, lengths, h_0, weights, "gru", True, 1, False)[0]
    return z


def test_a_recurrence_reads_the_layer_that_is_before_it() -> None:
    torch.manual_seed(1)
    module, inputs = Over(_again).eval(), ragged_batch(0.0)
    module.between = nn.Linear(HIDDEN, FEATURES)

    assert_rewritten(["recurrence", "recurrence", "sequence_linear"], module, *inputs)


CONVOLUTIONS: dict[str, tuple[nn.Module, int]] = {
    "same": (nn.Conv1d(FEATURES, 1000, 3, padding=1), 1),
    "strided": (nn.Conv1d(FEATURES, 1000, 4, stride=3, padding=2), 1),
    "no padding, no bias": (nn.Conv1d(FEATURES, 1000, 3, bias=False), 1),
    "pointwise": (nn.Conv1d(FEATURES, 3000, 1), 1),
    "small": (nn.Conv1d(FEATURES, 4, 3), 0),
    "dilated": (nn.Conv1d(FEATURES, 1000, 3, dilation=2), 0),
    "in groups": (nn.Conv1d(FEATURES, 3000 * FEATURES, 3, groups=FEATURES), 0),
    "double precision": (nn.Conv1d(FEATURES, 1000, 3).double(), 0),
}


@pytest.mark.few(11)
@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("time_first", [False, True])
def test_a_large_convolution_over_timesteps_answers_as_before(name: str, time_first: bool) -> None:
    layer, ours = CONVOLUTIONS[name]
    dtype = next(layer.parameters()).dtype

    class Convolved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            convolved: Tensor = self.layer(x.transpose(1, 2) if time_first else x)
            return torch.relu(convolved)

    def batch(rows: int, time: int) -> Tensor:
        sizes = (rows, time, FEATURES) if time_first else (rows, FEATURES, time)
        return torch.randn(sizes, dtype=dtype)

    module = Convolved().eval()
    dims = ({0: torch.export.Dim.AUTO, 1 if time_first else 2: torch.export.Dim.AUTO},)
    over = loaded(torch.export.export(module, (batch(3, 11),), dynamic_shapes=dims, strict=False))

    assert over.layers == ["convolution"] * ours
    for rows, time in ((3, 11), (2, 7), (4, 6)):
        assert_equal(module, over, batch(rows, time))


class Embedded(nn.Module):
    def __init__(self, *, states: bool, shared: bool) -> None:
        super().__init__()
        self.embed, self.core = nn.Embedding(9, FEATURES), nn.LSTM(FEATURES, HIDDEN)
        self.states, self.shared = states, shared

    def forward(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        weights = [getattr(self.core, name) for name in self.core._flat_weights_names]
        x, h_0 = self.embed(ids), torch.zeros(1, ids.shape[0], HIDDEN)
        y, h_n, _ = torch.ops.neuron_lstm.lstm(x, lengths, h_0, h_0, weights, True, 1, False, False)
        return (h_n, *[y] * self.states, *[x.mean(1)] * self.shared)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize(("states", "shared"), [(True, False), (False, False), (True, True)])
def test_an_embedding_is_read_by_the_layers_alone(dtype: torch.dtype, states: bool, shared: bool) -> None:
    module = Embedded(states=states, shared=shared).eval()
    inputs = torch.tensor([[3, 8, 1], [0, 5, 5]], dtype=dtype), torch.tensor([3, 2])
    source = native_source(exported(module, *inputs)).text
    over = rewritten(module, *inputs)

    assert ("torch.embedding" in source) is shared
    assert f"False, {states}{'' if shared else ', p_embed_weight'})" in source
    assert_equal(module, over, *inputs)
    if not shared:
        with pytest.raises(IndexError, match="ids must be within 0 to 8"):
            over(torch.tensor([[3, 9, 1], [0, 5, 5]], dtype=dtype), inputs[1])


class Started(Over):
    """Layers whose state, or what it is a view of, is made of zeros and then written in place."""

    def __init__(self, *, view: bool) -> None:
        super().__init__(lambda m, y: y)
        self.view = view

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        weights = [getattr(self.core, name) for name in self.core._flat_weights_names]
        zeros = torch.zeros(x.shape[0], HIDDEN) if self.view else torch.zeros(1, x.shape[0], HIDDEN)
        h_0 = zeros.unsqueeze(0) if self.view else zeros
        zeros += x[:, 0, :1]
        y, _ = torch.ops.neuron_lstm.rnn(x, lengths, h_0, weights, "gru", True, 1, False)
        return y


@pytest.mark.parametrize("view", [False, True])
def test_a_state_that_is_written_after_it_was_zero_is_kept(view: bool) -> None:
    assert_rewritten(["recurrence"], Started(view=view).eval(), *ragged_batch(0.0))


class Looped(nn.Module):
    CELLS: ClassVar[dict[str, Any]] = {"lstm": nn.LSTMCell, "gru": nn.GRUCell, "rnn": nn.RNNCell}

    def __init__(self, cell: str, *, given: bool, inside: bool) -> None:
        super().__init__()
        self.core, self.linear = self.CELLS[cell](FEATURES, HIDDEN), nn.Linear(HIDDEN, 3)
        self.given, self.inside = given, inside

    def forward(self, x: Tensor) -> Tensor:
        first = torch.tanh(x[:, 0, :1]).expand(-1, HIDDEN) if self.given else x.new_zeros(x.size(0), HIDDEN)
        lstm, outputs = isinstance(self.core, nn.LSTMCell), []
        state: Any = (first, first) if lstm else first
        for t in range(x.size(1)):
            state = self.core(x[:, t], state)
            h = state[0] if lstm else state
            outputs.append(self.linear(h) if self.inside else h)
        y = torch.stack(outputs, 1)
        return y if self.inside else self.linear(y)


USUAL = {("lstm", False, True), ("lstm", True, False), ("gru", True, True), ("rnn", False, False)}
LOOPS = [
    pytest.param(*loop, marks=() if loop in USUAL else pytest.mark.long)
    for loop in product(Looped.CELLS, (False, True), (False, True))
]
"""Each cell, and each value of both choices, with every cell in `make test-all`."""


@pytest.mark.few(1)
@pytest.mark.parametrize(("cell", "given", "inside"), LOOPS)
@torch.no_grad()
def test_a_loop_over_a_cell_is_one_layer_of_the_library(cell: str, given: bool, inside: bool) -> None:
    torch.manual_seed(0)
    model = Looped(cell, given=given, inside=inside).eval()
    config = one_input(f"[batch, time, {FEATURES}]", batch="[1, 4]", length="[4, 9]")
    program = lower(model, config).exported
    x, lengths = ragged_batch(float("nan"))
    over = loaded(program)
    (y,) = over(x, lengths)

    assert over.layers == ["recurrence", "sequence_linear"]
    assert ("zeros" in native_source(program).text) is False
    for row, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(y[row, :length], model(x[row : row + 1, :length])[0], atol=2e-6, rtol=1e-5)


def test_autocast_in_the_model_stays() -> None:
    """Operators before a recurrence keep their precision."""

    class Mixed(Over):
        def forward(self, x: Tensor, lengths: Tensor) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                q = x @ x.transpose(1, 2)
            return super().forward(x + q.float().sum(2, keepdim=True), lengths)

    assert_rewritten(["recurrence"], Mixed(lambda m, y: y).eval(), *ragged_batch(0.0))


def test_states_and_lengths_may_be_views() -> None:
    class Sliced(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.core = nn.LSTM(FEATURES, HIDDEN)

        def forward(self, x: Tensor, table: Tensor, states: Tensor) -> tuple[Tensor, ...]:
            weights = [getattr(self.core, name) for name in self.core._flat_weights_names]
            h_0, c_0 = states.transpose(0, 1)[:, :, ::2].chunk(2, 0)
            answers: tuple[Tensor, ...] = torch.ops.neuron_lstm.lstm(
                x[:, :, 1:], table[:, 1], h_0, c_0, weights, True, 1, False, True
            )
            return answers

    x, lengths = ragged_batch(0.0)
    wide = torch.cat([torch.full((*x.shape[:2], 1), torch.nan), x], 2)
    inputs = (wide, torch.stack([torch.full_like(lengths, 99), lengths], 1), torch.randn(len(x), 2, 2 * HIDDEN))

    assert_rewritten(["recurrence"], Sliced().eval(), *inputs)
