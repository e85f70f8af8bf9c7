"""bucket_model_trace(): the kernel selects the bucket, weights are stored once, the state is shared."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from traceable import Step, TimeMajor, pad_right, plain_kernel, scripted_kernel

from torchserve_neuron_lstm import tracing
from torchserve_neuron_lstm.tracing.bucket_kernel import call_factory, select_bucket
from torchserve_neuron_lstm.tracing.state import StateBuffer


class Reader(nn.Module):
    """A causal model over x[B, T, 4], with a constant that does not depend on the length."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm = nn.LSTM(4, 5, batch_first=True)
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.lstm(x)[0] * torch.tensor([self.scale] * 5)
        return y


def make_reader(**arguments: Any) -> tuple[nn.Module, dict[Any, int]]:
    return Reader(**arguments), {}


EXAMPLES = [torch.rand(2, 4, 4), torch.rand(2, 8, 4)]


@pytest.fixture(scope="module")
def reader() -> tracing.Traced:
    config = tracing.BucketModelConfig(scripted_kernel)
    return tracing.bucket_model_trace(make_reader, EXAMPLES, config, inline_weights_to_neff=False, backend="eager")


def test_every_length_is_answered_by_its_bucket(reader: tracing.Traced) -> None:
    model = Reader()
    for length, bucket in ((1, 4), (4, 4), (5, 8), (8, 8)):
        x = torch.rand(2, length, 4)
        answer = reader(x)
        assert answer.shape[1] == bucket
        with torch.no_grad():
            torch.testing.assert_close(answer[:, :length], model(x))


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        ((2, 9, 4), r"no bucket for \[2, 9, 4\]: .* are 0: \[2, 4, 4\]; 1: \[2, 8, 4\]"),
        ((3, 4, 4), r"float32 \[3, 4, 4\], but the program was compiled .*\[2, 4, 4\]"),  # it selects by length only
    ],
)
def test_what_no_bucket_holds_is_refused(reader: tracing.Traced, shape: tuple[int, ...], told: str) -> None:
    with pytest.raises(tracing.WrongInput, match=told):
        reader(torch.rand(shape))


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (([], torch.tensor(0)), tracing.WrongInput, r"no bucket for \[2, 3\]: the bucket kernel returned no tensors"),
        (([torch.rand(2, 4)], torch.tensor(2)), tracing.WrongInput, "the bucket kernel chose 2"),
        (([torch.rand(2, 4)], torch.tensor(-1)), tracing.WrongInput, "the bucket kernel chose -1"),
        ((None, torch.tensor(0)), TypeError, "a list of tensors first, it returned None"),
        (([torch.rand(2, 4)], "first"), TypeError, "a tensor of one number, it returned 'first'"),
        ([torch.rand(2, 4)], TypeError, r"must return \(tensors, index\), it returned list"),
    ],
)
def test_an_answer_of_the_kernel_without_a_bucket_is_refused(answer: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        select_bucket(lambda _: answer, [torch.rand(2, 3)], [[(2, 4)], [(2, 8)]])


def test_equal_weights_of_buckets_are_kept_once(reader: tracing.Traced) -> None:
    """Each bucket has its own copy of the model."""
    names = set(Reader().state_dict())

    assert {key for key in reader.store if key.startswith("weights/")} == {f"weights/{name}" for name in names}


def test_weights_are_replaced_in_all_buckets(tmp_path: Path, reader: tracing.Traced) -> None:
    reader.save(tmp_path / "reader")
    own = tracing.load(tmp_path / "reader")
    other = Reader()
    for parameter in other.parameters():
        nn.init.uniform_(parameter, -1, 1)

    tracing.replace_weights(own, other)

    for length in (4, 8):
        x = torch.rand(2, length, 4)
        with torch.no_grad():
            torch.testing.assert_close(own(x), other(x))


def test_a_scripted_kernel_is_saved_as_it_is_and_a_plain_one_by_name(tmp_path: Path, reader: tracing.Traced) -> None:
    reader.save(tmp_path / "scripted")
    plain, x = tracing.load(tmp_path / "scripted"), torch.rand(2, 3, 4)
    plain.save(tmp_path / "again")
    plain.kernel = call_factory(plain_kernel)
    plain.save(tmp_path / "plain")

    for name in ("again", "plain"):
        assert torch.equal(tracing.load(tmp_path / name)(x), reader(x))


def test_a_kernel_that_cannot_be_found_again_is_not_saved(tmp_path: Path, reader: tracing.Traced) -> None:
    reader.save(tmp_path / "traced")
    own = tracing.load(tmp_path / "traced")
    own.kernel = call_factory(lambda: pad_right)

    assert own(torch.rand(2, 3, 4)).shape == (2, 4, 5)
    with pytest.raises(ValueError, match=r"<lambda>.* cannot be imported where .* torch.jit.script"):
        own.save(tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["traced"]


@pytest.mark.parametrize("given", [3, lambda: None])
def test_a_kernel_is_given_as_a_function_that_makes_it(given: Any) -> None:
    with pytest.raises(TypeError, match="as a function that returns the function"):
        call_factory(given)


def test_arguments_of_each_bucket_are_its_own() -> None:
    config = tracing.BucketModelConfig(plain_kernel, func_kwargs=[{"scale": 1.0}, {"scale": 10.0}])
    traced = tracing.bucket_model_trace(make_reader, EXAMPLES, config, backend="eager")
    short, long = torch.rand(2, 4, 4), torch.rand(2, 8, 4)

    with torch.no_grad():
        torch.testing.assert_close(traced(short), Reader(1.0)(short))
        torch.testing.assert_close(traced(long), Reader(10.0)(long))


def test_arguments_must_be_as_many_as_buckets() -> None:
    config = tracing.BucketModelConfig(plain_kernel, func_kwargs=[{}])
    with pytest.raises(ValueError, match="func_kwargs is a list of 1, but there are 2 example inputs"):
        tracing.bucket_model_trace(make_reader, EXAMPLES, config, backend="eager")


def test_buckets_must_be_alike() -> None:
    config = tracing.BucketModelConfig(plain_kernel)
    with pytest.raises(ValueError, match="the inputs of bucket 1 are"):
        tracing.bucket_model_trace(lambda: (lambda *x: x[0] + x[-1], {}), [(EXAMPLES[0],) * 2, (EXAMPLES[0],)], config)
    with pytest.raises(ValueError, match="example_inputs is empty"):
        tracing.bucket_model_trace(make_reader, [], config)
    with pytest.raises(TypeError, match="func must return a tuple: the model, and its input_output_aliases"):
        tracing.bucket_model_trace(TimeMajor, EXAMPLES, config)


def step() -> tuple[nn.Module, dict[Any, int]]:
    torch.manual_seed(0)
    return Step(), {1: 1, 2: 2}


def rows_kernel() -> Any:
    def choose(tensors: list[torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor]:
        return tensors, torch.tensor(tensors[0].shape[0] - 1)

    return choose


def steps_of(rows: int) -> tuple[torch.Tensor, ...]:
    return torch.rand(rows, 3, 4), torch.zeros(1, rows, 5), torch.zeros(1, rows, 5)


def expected(pieces: list[torch.Tensor]) -> list[torch.Tensor]:
    model, h, c = step()[0], torch.zeros(1, 2, 5), torch.zeros(1, 2, 5)
    answers = []
    for x in pieces:
        rows = x.shape[0]
        with torch.no_grad():
            y, h[:, :rows], c[:, :rows] = model(x, h[:, :rows].contiguous(), c[:, :rows].contiguous())
        answers.append(y)
    return answers


def narrowed() -> Any:
    def views(shapes: list[list[list[int]]], states: list[torch.Tensor], bucket: torch.Tensor) -> list[torch.Tensor]:
        return [state[:, : shape[1]] for state, shape in zip(states, shapes[int(bucket)], strict=True)]

    return views


@pytest.mark.parametrize("preprocessor", [None, narrowed])
def test_buckets_share_one_state_and_take_their_part_of_it(preprocessor: Any, tmp_path: Path) -> None:
    config = tracing.BucketModelConfig(
        rows_kernel,
        shared_state_buffer=[torch.zeros(1, 2, 5), torch.zeros(1, 2, 5)],
        shared_state_buffer_preprocessor=preprocessor,
    )
    traced = tracing.bucket_model_trace(step, [steps_of(1), steps_of(2)], config, backend="eager")
    pieces = [torch.rand(rows, 3, 4) for rows in (2, 1, 1, 2)]

    for _ in range(2):
        for x, y in zip(pieces, expected(pieces), strict=True):
            torch.testing.assert_close(traced(x), y)
        traced.reset_state()
    traced(pieces[0])
    traced.save(tmp_path / "traced")
    torch.testing.assert_close(tracing.load(tmp_path / "traced")(pieces[0]), expected(pieces)[0])


@pytest.mark.parametrize(
    ("preprocessor", "message"),
    [
        (lambda _, states, __: [state[:, :1].clone() for state in states], "returned a copy of the state"),
        (lambda _, states, __: states, "returned .* bucket 0"),
    ],
)
def test_a_preprocessor_must_give_views_of_the_buckets_shapes(preprocessor: Any, message: str) -> None:
    """Otherwise the next state would be lost, or the program would refuse it."""
    state = StateBuffer((torch.zeros(1, 2, 5), torch.zeros(1, 2, 5)), [[[1, 1, 5], [1, 1, 5]]], preprocessor)

    with pytest.raises(ValueError, match=message):
        state.views(0)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("buffer", "message"),
    [
        (None, "the states of the buckets have different shapes"),
        ([torch.zeros(1, 2, 5)], "holds 1 tensors for 2 states"),
        (
            [torch.zeros(1, 1, 5)] * 2,
            r"a state of shape \[1, 1, 5\] is too small for \[1, 2, 5\]: enlarge shared_state_buffer",
        ),
        ([torch.zeros(1, 2, 5).double()] * 2, "holds torch.float64, but the state is torch.float32"),
    ],
)
def test_a_shared_state_must_fit_all_buckets(buffer: Any, message: str) -> None:
    config = tracing.BucketModelConfig(rows_kernel, shared_state_buffer=buffer)

    with pytest.raises(ValueError, match=message):
        tracing.bucket_model_trace(step, [steps_of(1), steps_of(2)], config, backend="eager")


def test_a_preprocessor_without_a_state_is_refused() -> None:
    with pytest.raises(ValueError, match="requires shared_state_buffer as well"):
        tracing.BucketModelConfig(rows_kernel, shared_state_buffer_preprocessor=narrowed)


def test_buckets_are_not_cut_into_batches(reader: tracing.Traced) -> None:
    with pytest.raises(ValueError, match="a trace with buckets selects one by its kernel"):
        tracing.dynamic_batch(reader)
