import struct
import threading
from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from native_layers import CELLS, ISAS, Batch, Shape, alone, answers_of, batch_for, error, kernel, pool, stack_of
from torch import nn

from torchserve_neuron_lstm.backends.native.library import LinearLayer

AWKWARD = (1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33)
"""Sizes around those of registers."""

per_instructions = pytest.mark.parametrize("isa", ISAS)
shapes = st.builds(
    Shape,
    cell=st.sampled_from(CELLS),
    inputs=st.sampled_from((1, 2, 7, 16)),
    hidden=st.sampled_from((*AWKWARD, 70)),
    layers=st.integers(1, 4),
    directions=st.integers(1, 2),
    bias=st.booleans(),
).flatmap(lambda shape: st.sampled_from(shape.with_projections()))


@st.composite
def ragged(draw: st.DrawFn) -> tuple[list[int], int]:
    """Lengths from 0 on, and the length of the batch."""
    steps = draw(st.integers(0, 9))
    return draw(st.lists(st.sampled_from((0, min(1, steps), steps)) | st.integers(0, steps), max_size=40)), steps


def laid_out(x: torch.Tensor, how: str) -> torch.Tensor:
    if how == "time first":
        return x.transpose(0, 1).contiguous().transpose(0, 1)
    if how == "with gaps":
        wide = torch.full((x.shape[0], x.shape[1], x.shape[2] + 3), torch.nan)
        wide[:, :, 1:-2] = x
        return wide[:, :, 1:-2]
    return x


@per_instructions
@settings(max_examples=60)
@given(
    shape=shapes,
    batch=ragged(),
    threads=st.integers(1, 5),
    garbage=st.sampled_from((0.0, 1e30, float("inf"), float("nan"))),
    layout=st.sampled_from(("plain", "time first", "with gaps")),
    time_major=st.booleans(),
)
def test_equals_every_row_alone(
    isa: str, shape: Shape, batch: tuple[list[int], int], threads: int, garbage: float, layout: str, time_major: bool
) -> None:
    core, values = shape.core(), batch_for(shape, *batch, garbage=garbage)
    given = Batch(laid_out(values.x, layout), values.lengths, values.h_0, values.c_0)
    ours = answers_of(stack_of(shape, core, pool(isa, threads)), given, time_major=time_major)

    assert ours[0].transpose(0, 1).is_contiguous() if time_major else ours[0].is_contiguous()
    if batch[0]:
        assert error(ours, alone(core, values)) <= 2e-6


@pytest.mark.few(1)
@per_instructions
@settings(max_examples=30)
@given(
    shape=shapes,
    batch=ragged(),
    threads=st.integers(1, 3),
    time_first=st.booleans(),
    ahead=st.booleans(),
    names=st.sampled_from([1, 11, 200]),
)
def test_ids_of_a_table_are_the_vectors_that_they_name(
    isa: str, shape: Shape, batch: tuple[list[int], int], threads: int, time_first: bool, ahead: bool, names: int
) -> None:
    lengths, steps = batch
    values, table = batch_for(shape, lengths, steps), torch.randn(names, shape.inputs)
    ids = torch.randint(0, len(table), (len(lengths), steps))
    stack = stack_of(shape, shape.core(), pool(isa, threads))
    expected = answers_of(stack, Batch(table[ids], values.lengths, values.h_0, values.c_0))

    ids[torch.arange(steps)[None, :] >= values.lengths[:, None]] = -7
    assert stack.multiply_table(table, most_bytes=1 << 20 if ahead else 0) == ahead
    given = ids.t().contiguous().t() if time_first else ids
    y, h_n, c_n = stack.run(given, values.lengths, values.h_0, values.c_0, table=table)
    unread = stack.run(given, values.lengths, values.h_0, values.c_0, table=table, outputs=False)

    assert y is not None
    assert unread[0] is None
    for found in ([y, h_n, c_n], [expected[0], *unread[1:]]):
        for one, other in zip(found, expected, strict=False):
            assert torch.equal(one, other)


@per_instructions
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("wrong", [-1, 11, 1 << 40])
def test_an_id_that_is_not_in_the_table_is_refused(isa: str, wrong: int, ahead: bool) -> None:
    shape, table = Shape(), torch.zeros(11, Shape().inputs)
    stack = stack_of(shape, shape.core(), pool(isa, 1))
    assert stack.multiply_table(table, most_bytes=1 << 20 if ahead else 0) == ahead

    with pytest.raises(IndexError, match="ids must be within 0 to 10"):
        stack.run(torch.tensor([[3, wrong]]), torch.tensor([2]), None, None, table=table)


@per_instructions
def test_a_table_is_multiplied_within_its_bound_of_memory(isa: str) -> None:
    shape, table = Shape(hidden=33, directions=2), torch.zeros(11, Shape().inputs)
    stack = stack_of(shape, shape.core(), pool(isa, 1))
    lanes = kernel(isa).lanes
    size = 11 * 2 * 4 * 4 * -(-33 // lanes) * lanes

    assert not stack.multiply_table(table, size - 1)
    assert stack.multiply_table(table, size)
    assert not stack.multiply_table(table[:0], size)


@pytest.mark.few(1)
@per_instructions
@settings(max_examples=30)
@given(shape=shapes, batch=ragged(), threads=st.integers(1, 3))
def test_states_that_are_not_given_are_zero(isa: str, shape: Shape, batch: tuple[list[int], int], threads: int) -> None:
    values = batch_for(shape, *batch)
    h_0, c_0 = torch.zeros_like(values.h_0), None if values.c_0 is None else torch.zeros_like(values.c_0)
    stack = stack_of(shape, shape.core(), pool(isa, threads))
    expected = answers_of(stack, Batch(values.x, values.lengths, h_0, c_0))

    for one, other in zip(stack.run(values.x, values.lengths, None, None), expected, strict=False):
        assert one is not None
        assert torch.equal(one, other)


@pytest.mark.few(1)
@per_instructions
@settings(max_examples=20)
@given(
    shape=shapes,
    lengths=st.lists(st.integers(0, 9), min_size=13, max_size=60),
    threads=st.sampled_from((2, 3, 4, 6)),
    time_major=st.booleans(),
)
def test_teams_that_join_as_rows_end_change_no_bit(
    isa: str, shape: Shape, lengths: list[int], threads: int, time_major: bool
) -> None:
    """One thread has one team from the first timestep to the last."""
    core, batch = shape.core(), batch_for(shape, lengths, 9)
    found = answers_of(stack_of(shape, core, pool(isa, threads)), batch, time_major=time_major)
    expected = answers_of(stack_of(shape, core, pool(isa, 1)), batch, time_major=time_major)
    assert all(torch.equal(ours, own) for ours, own in zip(found, expected, strict=True))


@pytest.mark.few(1)
@per_instructions
@settings(max_examples=30)
@given(shape=shapes, lengths=st.lists(st.integers(1, 7), min_size=1, max_size=30))
def test_a_row_is_the_same_to_the_last_bit_in_any_batch(isa: str, shape: Shape, lengths: list[int]) -> None:
    core, batch = shape.core(), batch_for(shape, lengths, 7)
    together = answers_of(stack_of(shape, core, pool(isa, 4)), batch)
    stack = stack_of(shape, core, pool(isa, 1))
    for index, length in enumerate(lengths):
        y, *states = answers_of(stack, batch.row(index))

        assert torch.equal(together[0][index, :length], y[0])
        assert all(torch.equal(ours[:, index], own[:, 0]) for ours, own in zip(together[1:], states, strict=True))


@pytest.mark.few(2)
@per_instructions
@settings(max_examples=30)
@given(
    shape=shapes.filter(lambda shape: shape.layers == 1 and not shape.projected),
    batch=ragged(),
    threads=st.integers(1, 3),
)
def test_hidden_units_that_fill_the_registers_change_no_bit(
    isa: str, shape: Shape, batch: tuple[list[int], int], threads: int
) -> None:
    """A layer of any size has the outputs of one that is filled up with units whose weights are zero."""
    filled = replace(shape, hidden=-(-shape.hidden // 16) * 16)
    core, wide, values = shape.core(), filled.core(), batch_for(shape, *batch)
    missing = (0, filled.hidden - shape.hidden)
    for name, weight in core.named_parameters():
        gates = weight.detach().unflatten(0, (-1, shape.hidden))
        own = nn.functional.pad(gates.movedim(1, -1), missing).movedim(-1, 1).flatten(0, 1)
        wide.get_parameter(name).data = nn.functional.pad(own, missing) if "weight_hh" in name else own
    states = [None if one is None else nn.functional.pad(one, missing) for one in (values.h_0, values.c_0)]
    assert states[0] is not None
    given = Batch(values.x, values.lengths, states[0], states[1])

    found = answers_of(stack_of(shape, core, pool(isa, threads)), values)
    expected = answers_of(stack_of(filled, wide, pool(isa, threads)), given)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(
            one.unflatten(2, (-1, shape.hidden)), other.unflatten(2, (-1, filled.hidden))[..., : shape.hidden]
        )


@per_instructions
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -1e30, 3e38, 1e-42])
def test_values_of_a_row_do_not_affect_other_rows(isa: str, cell: str, poison: float) -> None:
    shape = Shape(cell, hidden=17, layers=2, directions=2, projected=5 if cell == "lstm" else 0)
    stack, batch = stack_of(shape, shape.core(), pool(isa, 3)), batch_for(shape, [6, 5, 6, 1, 6], 6)
    before = answers_of(stack, batch)
    batch.x[2] = poison
    batch.h_0[:, 3] = poison
    after = answers_of(stack, batch)

    others = [0, 1, 4]
    assert torch.equal(before[0][others], after[0][others])
    assert all(torch.equal(one[:, others], two[:, others]) for one, two in zip(before[1:], after[1:], strict=True))


@per_instructions
@pytest.mark.parametrize("cell", CELLS)
def test_nan_stays_nan(isa: str, cell: str) -> None:
    shape = Shape(cell, inputs=1, hidden=3)
    stack = stack_of(shape, shape.core(), pool(isa, 1))
    for bits in (0x7FC00000, 0x7FC00001, 0xFFC00001, 0x7FC01234, 0x7FC001FF, 0x7F800001):
        batch = batch_for(shape, [1], 1)
        batch.x.view(torch.int32).fill_(struct.unpack("i", struct.pack("I", bits))[0])

        assert all(answer.isnan().all() for answer in answers_of(stack, batch))


@pytest.mark.few(70)
@per_instructions
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn_tanh"])
@pytest.mark.parametrize("size", [20.0, 100.0, 1e4, 1e30, float("inf")])
@pytest.mark.parametrize("state", [1.0, 1e6])
def test_saturated_gates_are_exact(isa: str, cell: str, size: float, state: float) -> None:
    shape = Shape(cell, inputs=1, hidden=5)
    core, gates = shape.core(), {"lstm": 4, "gru": 3}.get(cell, 1)
    for signs in product((-1.0, 1.0), repeat=gates):
        with torch.no_grad():
            core.get_parameter("weight_ih_l0").copy_(torch.tensor(signs).repeat_interleave(5)[:, None])
        batch = batch_for(shape, [3, 2], 3)
        batch.x.fill_(size)
        batch = Batch(batch.x, batch.lengths, batch.h_0 * state, None if batch.c_0 is None else batch.c_0 * state)

        answers = answers_of(stack_of(shape, core, pool(isa, 1)), batch)
        assert error(answers, alone(core, batch)) <= 1e-6
        assert cell != "rnn_tanh" or set(answers[0].abs().flatten().tolist()) <= {0.0, 1.0}  # ties, as in eager mode


@per_instructions
@pytest.mark.parametrize(("cell", "gates"), [("lstm", [0, 0, 0, 3]), ("gru", [0, -3, 1]), ("rnn_tanh", [1])])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_saturated_tanh_is_that_of_eager_mode(isa: str, cell: str, gates: list[float], sign: int) -> None:
    """It is 1 from about 9.0109 on, and the float32 before 1 below: an argmax over states tells them apart."""
    sizes = torch.cat([torch.linspace(8.67, 9.0107, 50), torch.linspace(9.011, 9.4, 20)])[:, None, None]
    shape = Shape(cell, inputs=1, hidden=1, bias=False)
    core, batch = shape.core(), batch_for(shape, [1] * len(sizes), 1)
    core.get_parameter("weight_hh_l0").data.zero_()
    core.get_parameter("weight_ih_l0").data.copy_(torch.tensor(gates)[:, None])
    core.get_parameter("weight_ih_l0").data[-1] *= 1 if cell == "lstm" else sign
    states = {"c_0": 2 * sign * sizes.transpose(0, 1)} if cell == "lstm" else {"h_0": batch.h_0 * 0}
    given = replace(batch, x=sizes, **states)
    ours, eager = answers_of(stack_of(shape, core, pool(isa, 1)), given)[0], alone(core, given, torch.float32)[0]

    assert torch.equal(ours, eager)
    assert set(ours.flatten().tolist()) == {sign * 1.0, sign * (1 - 2.0**-24)}


@per_instructions
@pytest.mark.parametrize("size", [30.0, 40.0, 60.0, 85.0, 89.0, 200.0])
@pytest.mark.parametrize("closed", [0, 3])
def test_an_lstm_passes_on_what_a_nearly_closed_gate_does(isa: str, size: float, closed: int) -> None:
    """States of 1e-30 and of 0 are told apart: an argmax over states may take either."""
    shape = Shape("lstm", inputs=1, hidden=5, bias=False)
    core, batch = shape.core(), batch_for(shape, [1], 1)
    with torch.no_grad():
        core.get_parameter("weight_hh_l0").zero_()
        weights = core.get_parameter("weight_ih_l0").div_(size)
        weights[5 * closed : 5 * closed + 5] = -1
    batch = replace(batch, x=torch.full_like(batch.x, size), c_0=torch.full_like(batch.h_0, float(closed)))
    ours, eager = answers_of(stack_of(shape, core, pool(isa, 1)), batch)[0], alone(core, batch, torch.float32)[0]

    torch.testing.assert_close(ours, eager, rtol=1e-5 if size < 89 else 0, atol=0)


@per_instructions
@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("state", [2e6, 1e10, 1e20, 1e30])
def test_large_states_leave_through_gates_that_are_nearly_closed(isa: str, cell: str, state: float) -> None:
    """A gate that passes 1e-20 of a state of 1e20 passes 1."""
    shape = Shape(cell, 3, 17)
    core, batch = shape.core(), batch_for(shape, [3, 2], 3)
    given = {"h_0": batch.h_0 * state} if batch.c_0 is None else {"c_0": batch.c_0 * state}
    if cell == "gru":
        core.get_parameter("weight_hh_l0").data.zero_()  # the gates follow from x
    stack, large = stack_of(shape, core, pool(isa, 1)), replace(batch, x=batch.x * 100, **given)

    for ours, theirs in zip(answers_of(stack, large), alone(core, large), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-5)


@per_instructions
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("scale", [1e-3, 1e-8, 1e-20])
def test_small_numbers_keep_their_digits(isa: str, cell: str, scale: float) -> None:
    """Errors are relative to the numbers, because a model may use any units."""
    shape = Shape(cell, hidden=9, bias=False)
    core, batch = shape.core(), batch_for(shape, [8, 5], 8, scale=scale)
    batch = Batch(batch.x, batch.lengths, batch.h_0 * scale, None if batch.c_0 is None else batch.c_0 * scale)
    for ours, theirs in zip(answers_of(stack_of(shape, core, pool(isa, 2)), batch), alone(core, batch), strict=True):
        assert (ours.double() - theirs).norm() <= 1e-6 * theirs.norm()


@per_instructions
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn_tanh"])
def test_errors_do_not_grow_with_time(isa: str, cell: str) -> None:
    shape = Shape(cell, hidden=16)
    core, batch = shape.core(), batch_for(shape, [3000, 2999], 3000)
    exact = alone(core, batch)
    ours = error(answers_of(stack_of(shape, core, pool(isa, 2)), batch), exact)

    assert ours <= max(1e-6, 4 * error(alone(core, batch, torch.float32), exact))


@per_instructions
@settings(max_examples=40)
@given(
    inputs=st.sampled_from((1, 7, 16, 33)),
    outputs=st.sampled_from((*AWKWARD, 64, 65, 600)),
    bias=st.booleans(),
    batch=ragged(),
    threads=st.integers(1, 4),
    time_major=st.booleans(),
    whole=st.booleans(),
)
def test_a_linear_layer_equals_torchs(
    isa: str,
    inputs: int,
    outputs: int,
    bias: bool,
    batch: tuple[list[int], int],
    threads: int,
    time_major: bool,
    whole: bool,
) -> None:
    lengths, steps = batch
    x = batch_for(Shape(inputs=inputs), lengths, steps).x
    torch.manual_seed(outputs)
    linear = nn.Linear(inputs, outputs, bias=bias)
    ours = LinearLayer(pool(isa, threads), linear.weight.detach(), linear.bias.detach() if bias else None)
    y = ours.run(x, None if whole else torch.tensor(lengths, dtype=torch.int64), time_major=time_major)

    assert y.transpose(0, 1).is_contiguous() if time_major else y.is_contiguous()
    with torch.no_grad():
        assert error([y], [linear.double()(x.double())]) <= 2e-6


@pytest.mark.few(1)
@per_instructions
def test_several_threads_may_call_at_once(isa: str) -> None:
    threads = pool(isa, 3)
    shapes = (Shape(hidden=17, layers=2, directions=2, projected=6), Shape("gru", hidden=33))
    stacks = [stack_of(shape, shape.core(), threads) for shape in shapes]
    batches = [batch_for(shape, [5, 9, 1, 9, 3, 7, 2, 9] * 3, 9) for shape in shapes]
    wanted = [answers_of(stack, batch) for stack, batch in zip(stacks, batches, strict=True)]
    wrong: list[int] = []

    def call(which: int) -> None:
        for _ in range(50):
            answers = answers_of(stacks[which], batches[which])
            if not all(torch.equal(one, two) for one, two in zip(answers, wanted[which], strict=True)):
                wrong.append(which)

    callers = [threading.Thread(target=call, args=(index % 2,)) for index in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []


@per_instructions
def test_answers_are_the_callers(isa: str) -> None:
    shape = Shape(layers=3)
    stack = stack_of(shape, shape.core(), pool(isa, 2))
    first = answers_of(stack, batch_for(shape, [9, 4], 9))
    kept = [answer.clone() for answer in first]
    answers_of(stack, batch_for(shape, [9, 9], 9, scale=3.0))

    assert all(torch.equal(answer, copy) for answer, copy in zip(first, kept, strict=True))


@per_instructions
@pytest.mark.parametrize("lengths", [[3, 5], [-1, 4]])
def test_lengths_beyond_the_batch_are_refused(isa: str, lengths: list[int]) -> None:
    """Otherwise memory outside the batch would be read."""
    shape = Shape()
    stack, batch = stack_of(shape, shape.core(), pool(isa, 2)), batch_for(shape, [4, 4], 4)
    with pytest.raises(ValueError, match=r"lengths must be within 0 to 4, got \[-?\d, \d\]"):
        stack.run(batch.x, torch.tensor(lengths), batch.h_0, batch.c_0)


@per_instructions
def test_lengths_may_be_a_view(isa: str) -> None:
    shape = Shape()
    stack, batch = stack_of(shape, shape.core(), pool(isa, 2)), batch_for(shape, [4, 1, 2], 4)
    column = torch.stack([torch.full((3,), 99), batch.lengths], 1)[:, 1]
    viewed = Batch(batch.x, column, batch.h_0, batch.c_0)

    assert not column.is_contiguous()
    assert all(
        torch.equal(one, two) for one, two in zip(answers_of(stack, viewed), answers_of(stack, batch), strict=True)
    )
