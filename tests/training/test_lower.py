import copy
import inspect
import io
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import rnn as rnn_modules
from torch.nn.utils import rnn as rnn_utils
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence, unpack_sequence
from torch.utils.checkpoint import CheckpointError, checkpoint

import torchserve_neuron_lstm
from torchserve_neuron_lstm.training import lower, recurrence

X = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
LENGTHS = torch.tensor([3, 5, 1])


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 3, batch_first=True, bidirectional=True)
        self.calls = 0

    def forward(self, x: Tensor, lengths: Tensor, *, times: float = 1.0) -> Tensor:
        self.calls += 1
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0] * times


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    seen: list[bool] = []
    stack = recurrence._stack

    def counting(*args: Any) -> Any:
        seen.append(True)
        return stack(*args)

    monkeypatch.setattr(recurrence, "_stack", counting)
    return seen


def test_the_package_offers_it() -> None:
    assert torchserve_neuron_lstm.lower is lower
    with pytest.raises(AttributeError, match="has no attribute 'raise_'"):
        _ = torchserve_neuron_lstm.raise_


def test_it_is_the_same_model(used: list[bool]) -> None:
    model = Encoder()
    faster = lower(model)
    faster.eval()
    answer = faster(X, LENGTHS, times=2.0)

    assert used
    torch.testing.assert_close(answer, model(X, LENGTHS, times=2.0))
    assert isinstance(faster, Encoder)
    assert repr(faster) == repr(model)
    assert [id(parameter) for parameter in faster.parameters()] == [id(parameter) for parameter in model.parameters()]
    assert list(faster.state_dict()) == list(model.state_dict())
    assert (model.calls, model.training) == (2, False)
    assert inspect.signature(faster.forward) == inspect.signature(model.forward)
    assert lower(faster) is faster


def test_the_model_itself_uses_torchs_implementation(used: list[bool]) -> None:
    model = Encoder()
    faster = lower(model)
    model(X, LENGTHS)
    faster(X, LENGTHS)
    count = len(used)
    model(X, LENGTHS)

    assert count == len(used) == 1
    assert rnn_modules._VF is rnn_utils._VF is torch._VF  # type: ignore[attr-defined]  # torch does not say that it has it
    with pytest.raises(RuntimeError):
        faster(X, LENGTHS + 9)
    assert rnn_modules._VF is rnn_utils._VF is torch._VF  # type: ignore[attr-defined]  # torch does not say that it has it


def test_optimizers_made_for_the_model_train_the_lowered_one() -> None:
    model = Encoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = copy.deepcopy(model.state_dict())
    lower(model)(X, LENGTHS).square().sum().backward()
    optimizer.step()

    assert all(not torch.equal(value, before[name]) for name, value in model.state_dict().items())
    lower(model).load_state_dict(before)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_copies_and_pickles_are_lowered_models_of_their_own(used: list[bool]) -> None:
    faster = lower(Encoder())
    file = io.BytesIO()
    torch.save(faster, file)
    file.seek(0)
    for other in (copy.deepcopy(faster), torch.load(file, weights_only=False)):
        count = len(used)
        torch.testing.assert_close(other(X, LENGTHS), faster(X, LENGTHS))

        assert len(used) == count + 2
        assert isinstance(other, Encoder)
        assert other.lstm is not faster.lstm


def test_a_shallow_copy_has_attributes_of_its_own(used: list[bool]) -> None:
    model = Encoder()
    faster = lower(model)
    copied = copy.copy(faster)
    copied(X, LENGTHS)

    assert (copied.calls, faster.calls, model.calls) == (1, 0, 0)
    assert copied.lstm is model.lstm
    assert used


def compiled_in_place() -> nn.Module:
    model = Encoder()
    model.compile(backend="eager")
    return model


def test_a_lowered_model_may_be_compiled_in_place() -> None:
    faster = lower(Encoder())
    faster.compile(backend="eager")

    assert lower(faster) is faster
    torch.testing.assert_close(copy.copy(faster)(X, LENGTHS), copy.deepcopy(faster)(X, LENGTHS))


def test_a_part_of_a_model_can_be_lowered(used: list[bool]) -> None:
    whole = nn.ModuleDict({"encoder": Encoder()})
    keys = list(whole.state_dict())
    whole["encoder"] = lower(whole["encoder"])
    whole["encoder"](X, LENGTHS)

    assert used
    assert list(whole.state_dict()) == keys


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.jit.script(nn.Linear(2, 2)), "scripted"),
        (lambda: torch.compile(Encoder()), "then compile: torch.compile"),
        (compiled_in_place, "then compile: torch.compile"),
        (lambda: nn.Linear(2, 2).forward, "takes an nn.Module, not method"),
    ],
    ids=["scripted", "compiled", "compiled in place", "no module"],
)
def test_what_cannot_be_lowered_is_refused(make: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        lower(make())


def test_other_threads_use_torchs_implementation(used: list[bool]) -> None:
    inside, done = threading.Event(), threading.Event()

    class Waiting(Encoder):
        def forward(self, x: Tensor, lengths: Tensor, *, times: float = 1.0) -> Tensor:
            inside.set()
            assert done.wait(30)
            return super().forward(x, lengths, times=times)

    lowered = threading.Thread(target=lower(Waiting()), args=(X, LENGTHS))
    lowered.start()
    assert inside.wait(30)
    Encoder()(X, LENGTHS)
    count = len(used)
    done.set()
    lowered.join(30)

    assert (count, len(used)) == (0, 1)
    assert rnn_modules._VF is torch._VF  # type: ignore[attr-defined]  # torch does not say that it has it


def test_rows_of_one_length_are_left_to_torch_without_gradients(used: list[bool]) -> None:
    """Torch is as fast without gradients, and slower with them."""
    model = Encoder()
    even = torch.full((3,), 4)
    with torch.no_grad():
        answer = lower(model)(X, even)
    count = len(used)
    lower(model)(X, even).sum().backward()

    assert (count, len(used)) == (0, 1)
    torch.testing.assert_close(answer, model(X, even))


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 4)
        self.norm = nn.LayerNorm(4)
        self.first = nn.GRU(4, 4)
        self.second = nn.LSTM(4, 3, bidirectional=True)

    def forward(self, ids: Tensor, lengths: Tensor) -> Any:
        packed = pack_padded_sequence(ids, lengths.tolist(), batch_first=True, enforce_sorted=False)
        x = PackedSequence(self.embed(packed.data), *packed[1:])
        y, h = self.first(x)
        y = y._replace(data=nn.functional.dropout(self.norm(y.data + x.data), 0.0, inplace=True))
        z, (_, c) = self.second(PackedSequence(y.data, y.batch_sizes, y.sorted_indices))
        return z, z.batch_sizes, packed.unsorted_indices, h, c, pad_packed_sequence(z, padding_value=-1.0), x.cpu().data


def test_packed_data_may_be_used_as_torchs(used: list[bool]) -> None:
    model = Own()
    ids = torch.randint(0, 9, (3, 5))
    ours, theirs = lower(model)(ids, LENGTHS), model(ids, LENGTHS)
    torch.testing.assert_close(ours, theirs)
    gradients = [
        torch.autograd.grad(answer[0].data.square().sum(), list(model.parameters())) for answer in (ours, theirs)
    ]

    assert len(used) == 2
    assert isinstance(ours[0], PackedSequence)
    torch.testing.assert_close(*gradients)


class Lists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(4, 3)

    def forward(self, sequences: list[Tensor]) -> list[Tensor]:
        return unpack_sequence(self.rnn(pack_sequence(sequences, enforce_sorted=False))[0])


def test_lists_of_sequences_are_packed_too(used: list[bool]) -> None:
    model = Lists()
    sequences = [X[0, :2], X[1], X[2, :3]]

    torch.testing.assert_close(lower(model)(sequences), model(sequences))
    assert used


class Checkpointed(nn.Module):
    def __init__(self, part: nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.part, self.reentrant = part, reentrant

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        return checkpoint(self.part, x, lengths, use_reentrant=self.reentrant)


def input_gradient(model: nn.Module) -> Tensor:
    x = X.clone().requires_grad_()
    model(x, LENGTHS).square().sum().backward()
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize(("lower_part", "reentrant"), [(True, False), (True, True), (False, True)])
def test_checkpoints_recompute_a_lowered_part(lower_part: bool, reentrant: bool) -> None:
    part = Encoder()
    model = lower(Checkpointed(lower(part) if lower_part else part, reentrant))

    torch.testing.assert_close(input_gradient(model), input_gradient(part))


def test_checkpoints_that_recompute_in_torchs_way_are_refused_by_torch() -> None:
    """The tensors saved differ: torch reports it, and gradients are never wrong."""
    with pytest.raises(CheckpointError):
        input_gradient(lower(Checkpointed(Encoder(), False)))


def test_recorded_programs_hold_torchs_own_operators(used: list[bool]) -> None:
    """A trace is of the model, not of the path of one batch."""
    model = Encoder()
    with torch.no_grad():
        traced = torch.jit.trace(lower(model), (X, LENGTHS.sort(descending=True).values), check_trace=False)

    assert not used
    assert "_pack_padded_sequence" in str(traced.inlined_graph)
