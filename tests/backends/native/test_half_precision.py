"""Recurrences with weights of half the bytes: near torch's layers, and equal for a row in any batch."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from native_layers import CELLS, Batch, Shape, alone, answers_of, batch_for, halves_here, library, stack_of
from recurrent import Case, Recurrent, exported, largest_error, ragged_batch

from torchserve_neuron_lstm.backends import cpp_compiler
from torchserve_neuron_lstm.backends.interface import CompileError, CompileSettings, LoadError
from torchserve_neuron_lstm.backends.native import build
from torchserve_neuron_lstm.backends.native.engine import Native
from torchserve_neuron_lstm.backends.native.library import ThreadPool
from torchserve_neuron_lstm.backends.native.packing import BFLOAT16_PAIRS, BFLOAT16_TILES, FLOAT16, pack_recurrence


def here_or_not_run(one: build.InstructionSet) -> object:
    """A parameter of tests, which are told as not run where this host lacks the instructions."""
    reason = f"not run: this host has not all of {', '.join(sorted(one.cpu_flags))}"
    marks = [pytest.mark.xdist_group(f"kernel-{one.library}"), pytest.mark.skipif(not one.runs_here(), reason=reason)]
    return pytest.param(one, marks=marks, id=one.library)


HALVES = [here_or_not_run(one) for one in build.instruction_sets("bfloat16")] if halves_here() else []
DIGITS = {FLOAT16: 2.0**-11, BFLOAT16_PAIRS: 2.0**-8, BFLOAT16_TILES: 2.0**-8}
"""The largest relative error of a number that is rounded to so many digits."""
ROW_COUNTS = (1, 2, 16, 17, 32, 33, 49)
"""Numbers of rows around those of tiles of 16 rows, alone and in pairs."""
per_library = pytest.mark.parametrize("instructions", HALVES)
shapes = st.builds(
    Shape,
    cell=st.sampled_from(CELLS),
    inputs=st.sampled_from((1, 2, 7, 16, 31, 33)),
    hidden=st.sampled_from((1, 3, 8, 15, 16, 17, 33, 70)),
    layers=st.integers(1, 3),
    directions=st.integers(1, 2),
    bias=st.booleans(),
).flatmap(lambda shape: st.sampled_from(shape.with_projections()))
pytestmark = pytest.mark.skipif(not HALVES, reason="not run: this kind of machine has no half precision")


@cache
def pool(instructions: build.InstructionSet, threads: int) -> ThreadPool:
    """Threads, which tests share."""
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
    instructions: build.InstructionSet, shape: Shape, lengths: list[int], threads: int, garbage: float
) -> None:
    """The bound is that of rounded weights and, for pairs of bfloat16, of rounded inputs."""
    core, batch = shape.core(), batch_for(shape, lengths, 9, garbage=garbage)
    stack = stack_of(shape, core, pool(instructions, threads))
    bound = 40 * DIGITS[library(instructions).weights]

    for ours, theirs in zip(answers_of(stack, batch), alone(core, batch), strict=True):
        assert float((ours - theirs).abs().max()) <= bound * max(1.0, float(theirs.abs().max()))


@per_library
@settings(max_examples=30)
@given(
    shape=shapes,
    lengths=st.sampled_from(ROW_COUNTS).flatmap(lambda rows: st.lists(st.integers(1, 7), min_size=rows, max_size=rows)),
)
def test_a_row_is_the_same_to_the_last_bit_in_any_batch(
    instructions: build.InstructionSet, shape: Shape, lengths: list[int]
) -> None:
    """The other rows and the number of threads do not change its answer."""
    core, batch = shape.core(), batch_for(shape, lengths, 7)
    together = answers_of(stack_of(shape, core, pool(instructions, 3)), batch)
    single = stack_of(shape, core, pool(instructions, 1))
    for index, length in enumerate(lengths):
        y, *states = answers_of(single, batch.row(index))

        assert torch.equal(y[0], together[0][index, :length])
        assert all(torch.equal(one[:, 0], many[:, index]) for one, many in zip(states, together[1:], strict=True))


@per_library
@pytest.mark.parametrize("ahead", [False, True])
def test_rows_of_a_table_are_the_vectors_that_ids_name(instructions: build.InstructionSet, ahead: bool) -> None:
    """Outputs are equal bit for bit, whether the table is multiplied ahead or not."""
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


@torch.no_grad()
def test_a_program_in_bfloat16_is_near_the_model_on_every_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its directory has a library for each kind of processor, the least included."""
    module, inputs = Recurrent(Case()).eval(), ragged_batch(0.0)
    Native().compile(exported(module, *inputs), None, tmp_path, CompileSettings(precision="bfloat16"))
    flags = [frozenset(), *(one.cpu_flags for one in halves_here())]

    assert {file.name for file in tmp_path.glob("*.so")} == {one.library for one in build.instruction_sets("bfloat16")}
    for more in flags:
        monkeypatch.setattr(cpp_compiler, "cpu_flags", lambda more=more: cpp_compiler.cpu_target().cpu_flags | more)
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
    tiles, *others = build.instruction_sets("bfloat16")
    monkeypatch.setattr(build, "may_use_tiles", lambda: True)
    monkeypatch.setattr(cpp_compiler, "cpu_flags", lambda: cpp_compiler.cpu_target().cpu_flags | tiles.cpu_flags)

    assert {file.name for file in out.iterdir()} == {one.library for one in others}
    assert build.fastest_library(out) == "recurrence-x86-64-v4-half.so"


def test_a_system_that_refuses_the_tiles_runs_no_library_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """An example is a sandbox whose kernel shows the processor's features and not its registers."""
    tiles = build.instruction_sets("bfloat16")[0]
    monkeypatch.setattr(cpp_compiler, "cpu_flags", lambda: cpp_compiler.cpu_target().cpu_flags | tiles.cpu_flags)
    for granted in (False, True):
        monkeypatch.setattr(build, "may_use_tiles", lambda granted=granted: granted)

        assert tiles.runs_here() == granted


def test_another_kind_of_machine_is_refused_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library for arm64 has float32 alone."""
    monkeypatch.setattr("platform.machine", lambda: "aarch64")

    with pytest.raises(CompileError, match="native computes in bfloat16 on x86-64 only, this is aarch64"):
        build.build(tmp_path, "bfloat16")
