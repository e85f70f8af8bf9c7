import contextlib
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from torchserve_neuron_lstm.training import recurrence
from torchserve_neuron_lstm.training.lower import patch_vf

FEATURES, HIDDEN, PROJECTED = 5, 6, 4
LENGTHS = ([9, 9, 6, 5, 5, 1], [4, 4, 4], [7], [1, 1])


@pytest.fixture(params=["one segment", "many segments"], autouse=True)
def cut(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut small batches too, which would not be worth a cut."""
    if request.param == "many segments":
        monkeypatch.setattr(recurrence, "call_overhead", lambda weights: 3)
        monkeypatch.setattr(recurrence, "max_segment", lambda gates: 13)


def packed(lengths: list[int], dtype: torch.dtype = torch.float32) -> PackedSequence:
    x = torch.randn(lengths[0], len(lengths), FEATURES, generator=torch.Generator().manual_seed(0)).to(dtype)
    sequence = pack_padded_sequence(x, torch.tensor(lengths))
    sequence.data.requires_grad_()
    return sequence


def states(layer: nn.RNNBase, rows: int) -> Any:
    generator = torch.Generator().manual_seed(1)
    number = layer.num_layers * (2 if layer.bidirectional else 1)
    widths = [layer.proj_size or layer.hidden_size, layer.hidden_size][: 2 if isinstance(layer, nn.LSTM) else 1]
    given = [torch.randn(number, rows, width, generator=generator).requires_grad_() for width in widths]
    return tuple(given) if isinstance(layer, nn.LSTM) else given[0]


def leaves(value: Any) -> list[Tensor]:
    if isinstance(value, PackedSequence):
        return [value.data]
    return [value] if isinstance(value, Tensor) else [leaf for part in value or () for leaf in leaves(part)]


def answers_and_gradients(layer: nn.RNNBase, x: PackedSequence, state: Any) -> tuple[list[Tensor], list[Tensor]]:
    answers = leaves(layer(x, state))
    weighted = [answer * torch.linspace(-1, 2, answer.numel()).view(answer.shape) for answer in answers]
    loss = torch.cat([answer.flatten() for answer in weighted]).sum()
    return answers, list(torch.autograd.grad(loss, [x.data, *leaves(state), *layer.parameters()]))


KINDS: tuple[tuple[Any, dict[str, Any]], ...] = (
    (nn.LSTM, {}),
    (nn.LSTM, {"proj_size": PROJECTED}),
    (nn.GRU, {}),
    (nn.RNN, {}),
    (nn.RNN, {"nonlinearity": "relu"}),
)
STACKS = ((1, False, True), (2, True, True), (3, False, False))  # layers, both directions, bias
LAYERS = [
    pytest.param(
        kind,
        {"num_layers": depth, "bidirectional": both, "bias": bias, **options},
        id="-".join([kind.__name__, *map(str, options.values()), str(depth), *(["both"] if both else [])]),
    )
    for (kind, options), (depth, both, bias) in itertools.product(KINDS, STACKS)
]


@pytest.mark.parametrize(("kind", "options"), LAYERS)
@pytest.mark.parametrize("given", [False, True], ids=["zeros", "given state"])
def test_answers_and_gradients_are_those_of_torch(kind: Any, options: dict[str, Any], given: bool) -> None:
    layer = kind(FEATURES, HIDDEN, **options)
    for lengths in LENGTHS:
        state = states(layer, len(lengths)) if given else None
        theirs, their_gradients = answers_and_gradients(layer, packed(lengths), state)
        with patch_vf():
            ours, gradients = answers_and_gradients(layer, packed(lengths), state)

        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)
        for mine, other in zip(gradients, their_gradients, strict=True):
            assert float((mine - other).norm()) <= 1e-5 * float(other.norm())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_other_dtypes_stay_what_they_are(dtype: torch.dtype) -> None:
    layer = nn.LSTM(FEATURES, HIDDEN, 2, bidirectional=True).to(dtype)
    theirs = layer(packed(LENGTHS[0], dtype))[0].data
    with patch_vf():
        ours = layer(packed(LENGTHS[0], dtype))[0].data
    ours.sum().backward()

    assert ours.dtype == dtype
    torch.testing.assert_close(ours, theirs, rtol=0, atol=16 * torch.finfo(dtype).eps)


@pytest.mark.parametrize(("kind", "options"), LAYERS)
@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("given", [False, True], ids=["zeros", "given state"])
def test_autocast_gives_torchs_dtypes(kind: Any, options: dict[str, Any], narrow: torch.dtype, given: bool) -> None:
    layer = kind(FEATURES, HIDDEN, **options)
    state = states(layer, len(LENGTHS[0])) if given else None
    with torch.autocast("cpu", narrow):
        theirs = leaves(layer(packed(LENGTHS[0]), state))
        with patch_vf():
            ours = leaves(layer(packed(LENGTHS[0]), state))
    ours[0].float().sum().backward()

    assert [answer.dtype for answer in ours] == [answer.dtype for answer in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=0.05)
    assert all(parameter.grad is not None for parameter in layer.parameters())


def test_autocast_leaves_double_precision_as_it_is() -> None:
    layer = nn.LSTM(FEATURES, HIDDEN, 2, bidirectional=True).double()
    with torch.autocast("cpu"):
        theirs = leaves(layer(packed(LENGTHS[0], torch.float64)))
        with patch_vf():
            ours = leaves(layer(packed(LENGTHS[0], torch.float64)))

    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_gradients_of_gradients() -> None:
    layer = nn.LSTM(FEATURES, HIDDEN)
    penalties = []
    for context in (torch.enable_grad, patch_vf):
        x = packed(LENGTHS[0])
        with context():
            y = layer(x)[0].data
        (gradient,) = torch.autograd.grad(y.square().sum(), x.data, create_graph=True)
        penalties.append(torch.autograd.grad(gradient.square().sum(), list(layer.parameters())[:2]))

    for mine, other in zip(penalties[1], penalties[0], strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


def test_dropout_stands_between_layers_in_training_alone() -> None:
    layer = nn.LSTM(FEATURES, HIDDEN, 2, dropout=0.5)
    silenced = nn.LSTM(FEATURES, HIDDEN, 2, dropout=1.0)
    silenced.load_state_dict(layer.state_dict())
    x = packed(LENGTHS[0])
    with patch_vf():
        once, twice = layer(x)[0].data, layer(x)[0].data
        silent, silent_state = silenced(x)
        calm = layer.eval()(x)[0].data
    torchs_silent, torchs_state = silenced(x)

    assert not torch.equal(once, twice)
    torch.testing.assert_close(calm, layer(x)[0].data)
    torch.testing.assert_close(silent.data, torchs_silent.data)
    torch.testing.assert_close(silent_state, torchs_state)


def test_values_in_the_padding_have_no_influence() -> None:
    layer = nn.LSTM(FEATURES, HIDDEN, batch_first=True, bidirectional=True)
    clean = torch.randn(3, 5, FEATURES)
    gradients = []
    for garbage in (0.0, 1e30, float("inf"), float("nan")):
        x = clean.clone()
        x[1, 3:] = x[2, 1:] = garbage
        x.requires_grad_()
        with patch_vf():
            y, (_, c) = layer(pack_padded_sequence(x, torch.tensor([5, 3, 1]), batch_first=True))
            padded, _ = pad_packed_sequence(y, batch_first=True)
        gradients.append(
            torch.cat([g.flatten() for g in torch.autograd.grad(padded.sum() + c.sum(), [x, *layer.parameters()])])
        )

    assert all(torch.equal(gradients[0], other) for other in gradients[1:])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_batch_validated_in_inference_mode_can_be_trained_on(kind: Any) -> None:
    """Indices that were computed in inference mode are used in the backward pass too."""
    layer = kind(FEATURES, HIDDEN, 2, bidirectional=True)
    sequence = packed(LENGTHS[0])
    with patch_vf():
        with torch.inference_mode():
            pad_packed_sequence(layer(sequence)[0])
        pad_packed_sequence(layer(sequence)[0])[0].sum().backward()

    assert all(parameter.grad is not None for parameter in layer.parameters())


def test_states_do_not_overflow_in_the_padding() -> None:
    """With ReLU they could grow without bound, and infinite ones would turn gradients into NaN."""
    layer = nn.RNN(1, 2, nonlinearity="relu", bias=False)
    with torch.no_grad():
        for weight, value in zip(layer.parameters(), (torch.tensor(0.5), 3 * torch.eye(2)), strict=True):
            weight.copy_(value)
    sequence = pack_padded_sequence(
        torch.cat([-torch.ones(1, 100, 1), torch.ones(1, 100, 1)]), torch.tensor([100, 2]), True
    )
    gradients = []
    for context in (contextlib.nullcontext(), patch_vf()):
        with context:
            y, h = layer(sequence)
        gradients.append(torch.autograd.grad(y.data.sum() + h.sum(), list(layer.parameters())))

    torch.testing.assert_close(gradients[1], gradients[0])


def test_packed_outputs_and_states_may_be_written_to() -> None:
    """Torch permits this too: the gradients do not need them."""
    layer = nn.LSTM(FEATURES, HIDDEN)
    for lengths in LENGTHS:
        with patch_vf():
            y, states = layer(packed(lengths))
            written = [tensor.mul_(2.0) for tensor in (y.data, *states)]
        torch.stack([tensor.sum() for tensor in written]).sum().backward()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_what_torch_refuses_is_refused(kind: Any) -> None:
    layer = kind(FEATURES, HIDDEN)
    x, state = packed(LENGTHS[0]), states(layer, 7)
    with pytest.raises(RuntimeError) as theirs:
        layer(x, state)
    with patch_vf(), pytest.raises(RuntimeError) as ours:
        layer(x, state)

    assert str(ours.value).splitlines()[0] == str(theirs.value).splitlines()[0]


def test_gates_with_sums_of_any_size_keep_the_cells_of_ended_rows() -> None:
    layer = nn.LSTM(FEATURES, HIDDEN)
    nn.init.constant_(layer.get_parameter("bias_ih_l0"), 2e4)
    expected = layer(packed(LENGTHS[0]))[1][1]
    with patch_vf():
        torch.testing.assert_close(layer(packed(LENGTHS[0]))[1][1], expected)
