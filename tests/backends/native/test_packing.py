import torch
from hypothesis import given
from hypothesis import strategies as st
from native_layers import CELLS

from torchserve_neuron_lstm.backends.native.packing import pack_linear, pack_recurrence

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def unpacked(packed: torch.Tensor, gates: int, hidden: int, inputs: int, lanes: int, interleave: int) -> torch.Tensor:
    """The weights [G*H, K] from blocks, number by number, in the kernel's order."""
    numbers = iter(packed.flatten().tolist())
    weight = torch.full((gates, len(packed) * lanes, inputs), torch.nan)
    for block in range(len(packed)):
        for first in range(0, gates, interleave):
            for k in range(inputs):
                for gate in range(first, min(first + interleave, gates)):
                    for lane in range(lanes):
                        weight[gate, block * lanes + lane, k] = next(numbers)
    assert next(numbers, None) is None
    assert not weight[:, hidden:].any()
    return weight[:, :hidden].reshape(gates * hidden, inputs)


@given(
    cell=st.sampled_from(CELLS),
    inputs=st.integers(1, 5),
    hidden=st.integers(1, 11),
    lanes=st.sampled_from((1, 4, 8, 16)),
    interleave=st.integers(1, 4),
)
def test_weights_are_in_there_once_with_zeros_behind(
    cell: str, inputs: int, hidden: int, lanes: int, interleave: int
) -> None:
    gates = GATES[cell]
    w_ih, w_hh = torch.randn(gates * hidden, inputs), torch.randn(gates * hidden, hidden)
    from_input, from_state, _ = pack_recurrence(cell, [w_ih, w_hh], lanes, interleave)

    assert torch.equal(unpacked(from_input, gates, hidden, inputs, lanes, interleave), w_ih)
    assert torch.equal(unpacked(from_state, gates, hidden, hidden, lanes, interleave), w_hh)
    assert from_input.is_contiguous()
    assert from_state.is_contiguous()


@given(cell=st.sampled_from(CELLS), hidden=st.integers(1, 11), lanes=st.sampled_from((1, 4, 8)))
def test_biases_are_added_where_they_meet(cell: str, hidden: int, lanes: int) -> None:
    """Both biases of a gate are added, except for a GRU's new state, whose own is multiplied by r."""
    gates = GATES[cell]
    w_ih, w_hh = torch.zeros(gates * hidden, 1), torch.zeros(gates * hidden, hidden)
    b_ih, b_hh = torch.randn(2, gates, hidden)
    begin = pack_recurrence(cell, [w_ih, w_hh, b_ih.flatten(), b_hh.flatten()], lanes, 2)[2]
    sums = begin.transpose(0, 1).flatten(1)[:, :hidden]
    wanted = b_ih + b_hh if cell != "gru" else torch.stack([*(b_ih + b_hh)[:2], b_ih[2], b_hh[2]])

    assert begin.is_contiguous()
    assert torch.equal(sums, wanted)
    assert not begin.transpose(0, 1).flatten(1)[:, hidden:].any()


def test_layers_without_biases_begin_at_zero() -> None:
    without = pack_recurrence("gru", [torch.ones(9, 2), torch.ones(9, 3)], 4, 2)

    assert without[2].shape == (1, 4, 4)
    assert not without[2].any()


@given(inputs=st.integers(1, 5), outputs=st.integers(1, 20), block=st.sampled_from((4, 8, 16)))
def test_a_linear_layer_is_one_gate(inputs: int, outputs: int, block: int) -> None:
    weight, bias = torch.randn(outputs, inputs), torch.randn(outputs)
    packed, begin = pack_linear(weight, bias, block)

    assert torch.equal(unpacked(packed, 1, outputs, inputs, block, 1), weight)
    assert torch.equal(begin.flatten()[:outputs], bias)
    assert not begin.flatten()[outputs:].any()
    assert not pack_linear(weight, None, block)[1].any()


@given(outputs=st.integers(1, 40), hidden=st.integers(1, 5), lanes=st.sampled_from((1, 4, 8)), group=st.integers(1, 4))
def test_a_projection_is_a_cell_with_a_gate_per_register(outputs: int, hidden: int, lanes: int, group: int) -> None:
    w_ih, w_hh, w_hr = torch.zeros(4 * hidden, 1), torch.zeros(4 * hidden, outputs), torch.randn(outputs, hidden)
    *_, packed = pack_recurrence("lstm", [w_ih, w_hh, w_hr], lanes, group)
    found = unpacked(packed, -(-outputs // lanes), lanes, hidden, lanes, group)

    assert torch.equal(found[:outputs], w_hr)
    assert not found[outputs:].any()


def test_the_given_weights_stay_as_they_are() -> None:
    """They are the only copy, which other programs share."""
    weights = [torch.randn(8, 4), torch.randn(8, 2), torch.randn(8), torch.randn(8)]
    before = [weight.clone() for weight in weights]
    for part in pack_recurrence("lstm", weights, 2, 4):
        part.fill_(7.0)

    assert all(torch.equal(one, two) for one, two in zip(weights, before, strict=True))
