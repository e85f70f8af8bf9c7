from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from native_layers import (
    BELOW_FLOAT32,
    CELLS,
    Batch,
    Shape,
    all_of,
    alone,
    answers_of,
    batch_for,
    library,
    lower_here,
    stack_of,
)
from recurrent import Case, Recurrent, exported, largest_error, ragged_batch

from torchserve_neuron_lstm.backends import cpp_compiler, target_machine
from torchserve_neuron_lstm.backends.interface import CompileError, CompileSettings, LoadError, Precision
from torchserve_neuron_lstm.backends.native import build
from torchserve_neuron_lstm.backends.native.engine import Native
from torchserve_neuron_lstm.backends.native.instruction_sets import InstructionSet, fastest_library, instruction_sets
from torchserve_neuron_lstm.backends.native.library import ThreadPool
from torchserve_neuron_lstm.backends.native.packing import (
    BFLOAT16_PAIRS,
    BFLOAT16_TILES,
    FLOAT16,
    INT8,
    INT8_QUADS,
    pack_recurrence,
)


def here_or_not_run(one: InstructionSet) -> object:
    """A parameter of tests, which are told as not run where this host lacks the instructions."""
    reason = f"not run: this host has not all of {', '.join(sorted(one.cpu_flags))}"
    marks = [pytest.mark.xdist_group(f"kernel-{one.library}"), pytest.mark.skipif(not one.runs_here(), reason=reason)]
    return pytest.param(one, marks=[*marks, pytest.mark.long] if one.library in LONG else marks, id=one.library)


LONG = frozenset(
    f"recurrence-x86-64-{one}.so"
    for one in ("v3-half", "v4-int8", "v4-half", "v3-avxvnni-int8", "v4-avx512vnni-int8", "v4-avx512bf16-half")
)
"""Libraries with the instructions of others, in vectors of another size. Each takes ten seconds to compile."""
BELOW = [here_or_not_run(one) for one in all_of(*BELOW_FLOAT32)]
ROUNDING = {FLOAT16: 2.0**-11, BFLOAT16_PAIRS: 2.0**-8, BFLOAT16_TILES: 2.0**-8, INT8: 2.0**-8, INT8_QUADS: 2.0**-7}
"""The largest error of a rounded number, relative to it; with int8, to the largest one of its row."""
ROW_COUNTS = (1, 2, 16, 17, 32, 33, 49)
"""Numbers of rows around those of tiles of 16 rows, alone and in pairs."""
per_library = pytest.mark.parametrize("instructions", BELOW)
shapes = st.builds(
    Shape,
    cell=st.sampled_from(CELLS),
    inputs=st.sampled_from((1, 2, 7, 16, 31, 33)),
    hidden=st.sampled_from((1, 3, 8, 15, 16, 17, 33, 70)),
    layers=st.integers(1, 3),
    directions=st.integers(1, 2),
    bias=st.booleans(),
).flatmap(lambda shape: st.sampled_from(shape.with_projections()))
pytestmark = [
    pytest.mark.skipif(not BELOW, reason="not run: this kind of machine computes in float32 only"),
    pytest.mark.ci,
]


@cache
def pool(instructions: InstructionSet, threads: int) -> ThreadPool:
    return ThreadPool(library(instructions), threads)


@per_library
@settings(max_examples=40)
@given(
    shape=shapes,
    lengths=st.sampled_from(ROW_COUNTS).flatmap(lambda rows: st.lists(st.integers(0, 9), min_size=rows, max_size=rows)),
    threads=st.integers(1, 3),
    garbage=st.sampled_from((0.0, float("inf"), float("nan"))),
)
def test_states_are_near_those_of_each_row_alone(
    instructions: InstructionSet, shape: Shape, lengths: list[int], threads: int, garbage: float
) -> None:
    core, batch = shape.core(), batch_for(shape, lengths, 9, garbage=garbage)
    stack = stack_of(shape, core, pool(instructions, threads))
    bound = 40 * ROUNDING[library(instructions).weights]

    for ours, theirs in zip(answers_of(stack, batch), alone(core, batch), strict=True):
        assert float((ours - theirs).abs().max()) <= bound * max(1.0, float(theirs.abs().max()))


@per_library
@settings(max_examples=30)
@given(
    shape=shapes,
    lengths=st.sampled_from(ROW_COUNTS).flatmap(lambda rows: st.lists(st.integers(1, 7), min_size=rows, max_size=rows)),
)
def test_a_row_is_the_same_to_the_last_bit_in_any_batch(
    instructions: InstructionSet, shape: Shape, lengths: list[int]
) -> None:
    core, batch = shape.core(), batch_for(shape, lengths, 7)
    together = answers_of(stack_of(shape, core, pool(instructions, 3)), batch)
    single = stack_of(shape, core, pool(instructions, 1))
    for index, length in enumerate(lengths):
        y, *states = answers_of(single, batch.row(index))

        assert torch.equal(y[0], together[0][index, :length])
        assert all(torch.equal(one[:, 0], many[:, index]) for one, many in zip(states, together[1:], strict=True))


@per_library
@pytest.mark.parametrize("ahead", [False, True])
def test_rows_of_a_table_are_the_vectors_that_ids_name(instructions: InstructionSet, ahead: bool) -> None:
    shape = Shape(inputs=7, hidden=33)
    values, table = batch_for(shape, [9, 4, 1], 9), torch.randn(11, shape.inputs)
    ids = torch.randint(0, len(table), (3, 9))
    stack = stack_of(shape, shape.core(), pool(instructions, 2))
    expected = answers_of(stack, Batch(table[ids], values.lengths, values.h_0, values.c_0))
    assert stack.multiply_table(table, most_bytes=1 << 20 if ahead else 0) == ahead
    found = stack.run(ids, values.lengths, values.h_0, values.c_0, table=table)

    for one, other in zip(found, expected, strict=True):
        assert one is not None
        assert torch.equal(one, other)


def test_pairs_of_an_odd_number_of_inputs_end_with_a_zero() -> None:
    """A pair holds the weights of two inputs for one unit."""
    w_ih = torch.tensor([[1.0, 2, 3], [4, 5, 6]])
    packed = pack_recurrence("rnn_tanh", [w_ih, torch.zeros(2, 2)], lanes=2, interleave=1, kind=BFLOAT16_PAIRS)[0]

    assert packed.dtype is torch.bfloat16
    assert packed.tolist() == [[1, 2, 4, 5, 3, 0, 6, 0]]


def test_tiles_of_weights_end_with_zeros() -> None:
    """A tile has 16 pairs of inputs."""
    packed = pack_recurrence("rnn_tanh", [torch.ones(2, 33), torch.ones(2, 2)], 2, 1, kind=BFLOAT16_TILES)

    assert [part.shape[1] for part in packed[:2]] == [2 * 64, 2 * 32]
    assert [float(part.sum()) for part in packed[:2]] == [2 * 33, 2 * 2]


def test_weights_that_float16_does_not_hold_are_refused() -> None:
    """They would be infinite."""
    w_hh = torch.full((2, 2), 70_000.0)

    with pytest.raises(LoadError, match=r"weights of up to 7e\+04 are larger than float16 holds .*precision: float32"):
        pack_recurrence("rnn_tanh", [torch.zeros(2, 3), w_hh], lanes=2, interleave=1, kind=FLOAT16)


def unpacked(packed: torch.Tensor, lanes: int, inputs: int) -> torch.Tensor:
    """The weights [H, K] of an RNN's quads: four of 8 bits, times their unit's scale."""
    quads = -(-inputs // 4)
    weights, scales, _ = packed.split([4 * quads * lanes, 4 * lanes, 4 * lanes], 1)
    units = weights.view(-1, quads, lanes, 4).transpose(1, 2).flatten(2).flatten(0, 1)
    return torch.mul(units[:, :inputs], scales.contiguous().view(torch.float32).flatten()[:, None])


@given(hidden=st.integers(1, 9), inputs=st.integers(1, 9), exponent=st.integers(-30, 30), seed=st.integers(0, 99))
def test_quads_are_the_weights_to_half_a_256th_of_the_largest_of_their_unit(
    hidden: int, inputs: int, exponent: int, seed: int
) -> None:
    weight = 2.0**exponent * torch.randn(hidden, inputs, generator=torch.Generator().manual_seed(seed))
    weight[0] = 0
    packed = pack_recurrence("rnn_tanh", [weight, torch.zeros(hidden, hidden)], lanes=4, interleave=1, kind=INT8_QUADS)[
        0
    ]
    found = unpacked(packed, 4, inputs)[:hidden]

    assert packed.dtype is torch.int8
    assert bool(((found - weight).abs() <= 0.501 / 127 * weight.abs().amax(1, keepdim=True)).all())


def test_more_inputs_than_a_sum_of_32_bits_holds_are_refused() -> None:
    """The sum would be another number, without a word."""
    with pytest.raises(LoadError, match=r"a recurrence of 65537 inputs has too many for int8 .*precision: float32"):
        pack_recurrence("rnn_tanh", [torch.zeros(1, 65537), torch.zeros(1, 1)], lanes=4, interleave=1, kind=INT8_QUADS)


@pytest.mark.parametrize("instructions", [here_or_not_run(one) for one in all_of("int8")])
def test_the_largest_sums_of_int8_are_exact(instructions: InstructionSet) -> None:
    shape = Shape(cell="rnn_relu", inputs=65536, hidden=1, bias=False)
    core, batch = shape.core(), batch_for(shape, [1], 1)
    for sign in (1, -1):
        torch.nn.init.constant_(core.get_parameter("weight_ih_l0"), sign)
        torch.nn.init.zeros_(core.get_parameter("weight_hh_l0"))
        ones = Batch(torch.full_like(batch.x, sign), batch.lengths, batch.h_0, batch.c_0)
        y, _ = answers_of(stack_of(shape, core, pool(instructions, 1)), ones)

        assert y[0].tolist() == [[65536.0]]


@per_library
def test_numbers_that_are_not_finite_stay_in_their_row(instructions: InstructionSet) -> None:
    """With int8 a row has one scale for all of its numbers."""
    shape = Shape(inputs=7, hidden=33)
    core, batch = shape.core(), batch_for(shape, [4, 4, 4], 4)
    expected = answers_of(stack_of(shape, core, pool(instructions, 1)), batch)
    for wrong in (float("nan"), float("inf")):
        x = batch.x.clone()
        x[1, 2, 3] = wrong
        found = answers_of(stack_of(shape, core, pool(instructions, 1)), Batch(x, batch.lengths, batch.h_0, batch.c_0))
        is_whole = [torch.equal(one, other) for one, other in zip(found[0], expected[0], strict=True)]

        assert is_whole == [True, False, True]


@pytest.mark.parametrize("precision", [pytest.param(BELOW_FLOAT32[0], marks=pytest.mark.long), *BELOW_FLOAT32[1:]])
@torch.no_grad()
def test_a_program_below_float32_is_near_the_model_on_every_host(
    precision: Precision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, inputs = Recurrent(Case()).eval(), ragged_batch(0.0)
    Native().compile(exported(module, *inputs), None, tmp_path, CompileSettings(precision=precision))
    flags = [frozenset(), *(one.cpu_flags for one in lower_here() if one.precision == precision)]

    assert {file.name for file in tmp_path.glob("*.so")} == {one.library for one in instruction_sets(precision)}
    for more in flags:
        monkeypatch.setattr(target_machine, "cpu_flags", lambda more=more: target_machine.cpu_target().cpu_flags | more)
        run = Native().load(tmp_path, module.state_dict(), Native().host(), 2)

        assert 1e-6 < largest_error(run(inputs), module.alone(*inputs)) <= 3e-2


def test_an_assembler_without_tiles_writes_the_other_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of Ubuntu 20.04 is one. A host with tiles uses float16, which is faster there than pairs."""
    compiler = tmp_path / "old-g++"
    empty = f"exec {cpp_compiler.compiler()} -shared -x c++ /dev/null -o"  # for any source, which takes no time
    refuses, tells = '[[ "$*" != *amx* ]] || exit 1', "(($# > 1)) || exit 0"  # its version and machine
    compiler.write_text(f'#!/bin/bash\n{refuses}\n{tells}\n{empty} "${{@: -1}}"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    out = tmp_path / "out"
    out.mkdir()
    build.build(out, "bfloat16")
    tiles, *others = instruction_sets("bfloat16")
    monkeypatch.setattr(f"{instruction_sets.__module__}.may_use_tiles", lambda: True)
    monkeypatch.setattr(target_machine, "cpu_flags", lambda: target_machine.cpu_target().cpu_flags | tiles.cpu_flags)

    assert {file.name for file in out.iterdir()} == {one.library for one in others}
    assert fastest_library(out) == "recurrence-x86-64-v4-half.so"


def test_a_system_that_refuses_the_tiles_runs_no_library_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """An example is a sandbox whose kernel shows the processor's features and not its registers."""
    tiles = instruction_sets("bfloat16")[0]
    monkeypatch.setattr(target_machine, "cpu_flags", lambda: target_machine.cpu_target().cpu_flags | tiles.cpu_flags)
    for granted in (False, True):
        monkeypatch.setattr(f"{instruction_sets.__module__}.may_use_tiles", lambda granted=granted: granted)

        assert tiles.runs_here() == granted


def test_a_processor_without_products_of_int8_reads_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first AVX-512 processors have none; those with AVX2 alone have them from Alder Lake on."""
    wide, narrow, *without = instruction_sets("int8")
    least = target_machine.cpu_target().cpu_flags
    for features, expected in (
        (wide.cpu_flags | narrow.cpu_flags, wide),
        (wide.cpu_flags - {"avx512_vnni"}, without[0]),
        (narrow.cpu_flags, narrow),
        (frozenset[str](), without[1]),
    ):
        monkeypatch.setattr(target_machine, "cpu_flags", lambda features=features: least | features)

        assert next(one for one in instruction_sets("int8") if one.runs_here()) == expected


@pytest.mark.parametrize("precision", BELOW_FLOAT32)
def test_another_kind_of_machine_is_refused_with_the_reason(
    precision: Precision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library for arm64 has float32 alone."""
    monkeypatch.setattr("platform.machine", lambda: "aarch64")

    with pytest.raises(CompileError, match=f"native computes in {precision} on x86-64 only, this is aarch64"):
        build.build(tmp_path, precision)
