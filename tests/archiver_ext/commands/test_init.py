import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from model_cases import CASES, Case
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from torchserve_neuron_lstm.archiver_ext.cli import main
from torchserve_neuron_lstm.archiver_ext.commands.init import flow, starting_config
from torchserve_neuron_lstm.archiver_ext.errors import PackagingError
from torchserve_neuron_lstm.bucketing.shapes import TensorSpec
from torchserve_neuron_lstm.config.forward import LengthsArgument
from torchserve_neuron_lstm.config.load import load_config, parse_config
from torchserve_neuron_lstm.config.schema import ServingConfig

ROOT = Path(__file__).parents[3]


def started(model: type[nn.Module], **args: Any) -> tuple[str, ServingConfig]:
    text = starting_config(model, args, 64)
    return text, parse_config(text, "model-config.yaml")


NOT_FOUND = {"LstmWithState", "LstmGivenState", "NoBatch", "SpeakerAtEveryStep"}
"""Cases with tuple arguments and with layouts that no signature tells apart.

Those are layouts of a single sequence, and of two inputs that are concatenated as a layer's features.
"""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_inputs_and_lengths_of_ordinary_models_are_found(case: Case) -> None:
    text, config = started(case.make)  # type: ignore[arg-type]  # the class itself
    written = parse_config(case.yaml, "a test model")

    assert config.grid.buckets
    assert "TODO" not in text
    assert max(map(len, text.splitlines())) < 400
    if case.name in NOT_FOUND:
        return
    assert [replace(spec, value_range=None) for spec in config.input_specs] == list(written.input_specs)
    assert config.lengths == written.lengths
    assert (config.buckets.length is None) == (written.buckets.length is None)
    assert "forward() accepted" in text


class Padded(nn.Module):
    """A model with a padding id, an optional mask, a required constant, and arguments of its own."""

    def __init__(self, vocabulary: int, rate: float = 0.1) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, 4, padding_idx=3)
        self.lstm = nn.LSTM(4, 4, batch_first=True)

    def forward(
        self, ids: torch.Tensor, seq_lengths: torch.Tensor, packed: bool, mask: torch.Tensor | None = None
    ) -> Any:
        return self.lstm(self.embed(ids))[0]


def test_what_the_layers_tell_is_written_down() -> None:
    text, config = started(Padded, vocabulary=50, rate=1e-5)

    assert config.input_specs == (TensorSpec("ids", "int64", ("batch", "time"), 3),)
    assert "# ids from 0 to 49" in text
    assert config.model.args == {"vocabulary": 50, "rate": 1e-5}
    assert config.model.forward == {"packed": False}
    assert config.lengths == LengthsArgument(names=("seq_lengths",))
    assert "# mask has a default" in text


class Switch(nn.Module):
    """A model with an argument whose name is a boolean in YAML."""

    def __init__(self, off: int = 6) -> None:
        super().__init__()
        self.lstm = nn.LSTM(off, 4, batch_first=True)

    def forward(self, on: torch.Tensor) -> Any:
        return self.lstm(on)[0]


def test_names_that_yaml_takes_for_booleans_are_quoted() -> None:
    _, config = started(Switch, off=5)

    assert config.input_specs == (TensorSpec("on", "float32", ("batch", "time", 5)),)
    assert config.model.args == {"off": 5}


class Switched(nn.Module):
    """A model with required arguments that are no tensors, and nothing says so."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=True)

    def forward(self, frames: Any, mask: Any, training: Any, scale: int) -> Any:
        if mask is not None or training is not False or scale != 2:
            raise ValueError("not trained like this")
        return self.lstm(frames)[0]

    def infer(self, frames: Any, lengths: Any) -> Any:
        return self(frames, None, False, 2)


def test_constants_are_found_by_trying() -> None:
    text, config = started(Switched)

    assert config.grid.lengths[-1] == 64
    assert config.model.forward == {"mask": None, "training": False, "scale": 2}
    assert config.input_specs == (TensorSpec("frames", "float32", ("batch", "time", 3)),)
    assert "choose their values (they were accepted)" in text


class Frames(nn.Module):
    def __init__(self, steps_last: bool) -> None:
        super().__init__()
        self.steps_last, self.conv = steps_last, nn.Conv1d(40, 8, 5, stride=2)
        self.gru = nn.GRU(8, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        return self.gru(self.conv(x if self.steps_last else x.mT).mT)[0]


@pytest.mark.parametrize(("steps_last", "shape"), [(False, ("batch", "time", 40)), (True, ("batch", 40, "time"))])
def test_channels_of_a_convolution_are_found(steps_last: bool, shape: Any) -> None:
    assert started(Frames, steps_last=steps_last)[1].input_specs == (TensorSpec("x", "float32", shape),)


class Forecast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.store, self.context = nn.Embedding(50, 4), nn.Linear(4 + 5, 16)
        self.encoder, self.decoder = nn.LSTM(3, 16, batch_first=True), nn.GRU(16 + 2, 8, batch_first=True)

    def forward(self, past: Any, store: Any, static: Any, future: Any) -> Any:
        context = self.context(torch.cat([self.store(store), static], -1))
        return self.decoder(torch.cat([self.encoder(past)[0] + context[:, None], future], -1))[0]

    def spelled(self, chars: torch.Tensor, words: torch.Tensor) -> Any:
        rows, steps, number = chars.shape
        spelling = self.store(chars.view(rows * steps, number)).sum(1).view(rows, steps, 4)
        return self.encoder((self.store(words) + spelling)[..., :3])[0]

    def counted(self, ids: torch.Tensor) -> Any:
        x = pack_padded_sequence(self.store(ids)[..., :3], (ids != 0).sum(1), batch_first=True, enforce_sorted=False)
        return self.encoder(x)[1][0][-1]

    def words(self, chars: torch.Tensor) -> Any:
        return self.counted(chars.flatten(0, 1)).view(*chars.shape[:2], 16)

    def refused(self, past: Any, later: Any) -> Any:
        self.encoder(past)
        raise RuntimeError("never")


def test_each_of_several_arguments_is_found_by_its_own_use() -> None:
    _, config = started(Forecast)

    shapes = [("batch", "time", 3), ("batch",), ("batch", 5), ("batch", "time", 2)]
    assert [spec.shape for spec in config.input_specs] == shapes
    assert [spec.dtype for spec in config.input_specs] == ["float32", "int64", "float32", "float32"]


@pytest.mark.parametrize(
    ("method", "lines"),
    [
        ("spelled", ["chars: {dtype: int64, shape: [batch, time, 12]", "words: {dtype: int64, shape: [batch, time],"]),
        ("counted", ["ids: {dtype: int64, shape: [batch, time], pad_value: 0, range: [1, 49]}"]),
        ("words", ["chars: {dtype: int64, shape: [batch, time, 12], pad_value: 0}  # ids from 0 to 49"]),
    ],
)
def test_characters_are_found_and_ids_that_timesteps_but_not_words_are_counted_by_get_a_range(
    method: str, lines: list[str]
) -> None:
    text = starting_config(Forecast, {}, 64, method=method)

    assert all(line in text for line in lines)


def test_guesses_are_told_from_what_was_not_inferred() -> None:
    text = starting_config(Forecast, {}, 64, method="refused")

    assert "past: {dtype: float32, shape: [batch, time, 3], pad_value: 0}  # a guess\n" in text
    assert text.count("Not inferred") == text.count("pad_value: 0}  # Not inferred: write it as in") == 1


class Reader(nn.Module):
    def __init__(self, name: str = "") -> None:
        super().__init__()
        self.gru = nn.GRU(3, 8, batch_first=True)

    def forward(self, x: torch.Tensor, x_pad_mask: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.gru(x)[0]
        return y.masked_fill(x_pad_mask.bool().unsqueeze(2), 0.0).sum(1)


def test_an_argument_named_mask_is_made_of_the_lengths() -> None:
    text, config = started(Reader)

    assert list(config.inputs) == ["x"]
    assert config.mask is not None
    assert (config.mask.name, config.mask.true_for) == ("x_pad_mask", "padding")
    assert "check true_for" in text


class OneSentence(nn.Module):
    """A tagger of one sentence, as in PyTorch's first tutorial on LSTMs."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 6)
        self.lstm = nn.LSTM(6, 5)

    def forward(self, sentence: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.lstm(self.embedding(sentence).view(len(sentence), 1, -1))[0]
        return y.view(len(sentence), -1)


def test_a_model_of_one_sequence_is_served_in_batches() -> None:
    config = parse_config(starting_config(OneSentence, {}, 64), "model-config.yaml")

    assert config.model.batched is False
    assert [spec.shape for spec in config.input_specs] == [("batch", "time")]


def test_a_method_has_inputs_of_its_own() -> None:
    config = parse_config(starting_config(Switched, {}, 64, "Switched", "infer"), "model-config.yaml")

    assert (config.model.class_name, config.model.method) == ("Switched", "infer")
    assert config.model.forward == {}
    assert config.lengths == LengthsArgument(names=("lengths",))
    assert config.input_specs == (TensorSpec("frames", "float32", ("batch", "time", 3)),)


FILE = """
import torch


class Block(torch.nn.LSTM):
    def forward(self, x):
        return super().forward(x)[0]


class Whole(torch.nn.Module):
    def __init__(self, size, hidden=9):
        super().__init__()
        self.block = Block(size, hidden, batch_first=True)

    def forward(self, x):
        return self.block(x)

    def branch(self, x):
        if x.sum() > 0:
            return self.block(x)
        return x
"""


def init(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    (folder / "model.py").write_text(FILE)
    return main(["init", "--model-file", str(folder / "model.py"), "--longest", "9", *words]), *capsys.readouterr()


def test_a_checkpoint_tells_the_arguments_of_the_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = {f"model.block.{name}": tensor for name, tensor in nn.LSTM(5, 7).state_dict().items()}
    torch.save({"net": state}, tmp_path / "w.pt")
    code, text, told = init(tmp_path, capsys, "--serialized-file", str(tmp_path / "w.pt"))

    assert code == 0, told
    config = parse_config(text, "model-config.yaml")
    assert (config.model.class_name, config.model.args) == ("Whole", {"size": 5, "hidden": 7})
    assert config.input_specs == (TensorSpec("x", "float32", ("batch", "time", 5)),)
    assert "w.pt['net'] holds the weights; the prefix 'model.' of their names was left out" in told
    assert "model.py: the model is the class Whole, which uses the others (Block)" in told


@pytest.mark.parametrize("page", ["README.md", "docs/models.md"])
def test_the_command_in_the_docs_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(FILE.replace("size, hidden=9", "size=5, hidden=7"))
    torch.save({f"block.{name}": tensor for name, tensor in nn.LSTM(5, 7).state_dict().items()}, "checkpoint.pt")
    (command,) = re.findall(r"neuron-lstm (init --model-file [^`\n]*)", (ROOT / page).read_text())

    assert main(shlex.split(command)) == 0
    assert load_config(Path("model-config.yaml")).longest in (64, 128)


def test_a_missing_argument_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, told = init(tmp_path, capsys)

    assert (code, text) == (1, "")
    assert "Whole needs size: give the weights with --serialized-file, whose shapes tell sizes, or --args" in told


def test_what_lowering_refuses_is_told_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--class", "Whole", "--args", "size=3", "--method", "branch")
    code, text, told = init(tmp_path, capsys, *words)

    assert code == 0
    assert "if x.sum() > 0:" in told
    assert text.startswith("# lowering was tried and refuses this model")
    assert "# lowering" not in init(tmp_path, capsys, *words, "--no-try")[1]


def test_another_class_can_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no torch.nn.Module class Blok: it has Block, Whole" in init(tmp_path, capsys, "--class", "Blok")[2]
    words = ("--class", "Block", "--args", "input_size=3", "hidden_size=4", "batch_first=True")
    code, text, told = init(tmp_path, capsys, *words)

    assert (code, told) == (0, "")
    assert parse_config(text, "model-config.yaml").model.class_name == "Block"


class Opaque(nn.Module):
    def forward(self, signal: torch.Tensor, lengths: torch.Tensor) -> Any:
        raise RuntimeError("expected\nsomething: else # entirely {" + "x" * 500)


class Bare(nn.Module):
    """A model that cannot be served, but the file shows the required form."""

    def forward(self) -> Any:
        return torch.zeros(1)


@pytest.mark.parametrize(
    ("model", "said", "name"),
    [
        (Opaque, ["# Not inferred: write it as in", "RuntimeError: expected something: else # entirely {"], "signal"),
        (Bare, ["Not inferred"], "input"),
    ],
)
def test_what_was_not_found_out_is_said(model: type[nn.Module], said: list[str], name: str) -> None:
    text, config = started(model)

    assert all(one in text for one in said)
    assert list(config.inputs) == [name]


@pytest.mark.parametrize(
    ("model", "args", "longest", "said"),
    [
        (Padded, {}, 64, "vocabulary"),
        (Padded, {"vocabulary": 50, "rate": 1j}, 64, "cannot be written in YAML"),
        (Frames, {"steps_last": True}, None, "give --longest N, the timesteps of the longest one"),
    ],
)
def test_arguments_that_are_missing_or_have_no_plain_form_are_refused(
    model: type[nn.Module], args: dict[str, Any], longest: int | None, said: str
) -> None:
    with pytest.raises(PackagingError, match=said):
        starting_config(model, args, longest)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.ci
@given(plain)
@example({"TRUE": None, "no": 1, "a b": [1e16, -0.0], "\ud800\x7f\U0001f600": "1e5"})
def test_plain_values_are_read_back_as_they_were(value: Any) -> None:
    block = "inputs: {x: {dtype: int64, shape: [batch]}}, buckets: {batch: [1]}"
    config = parse_config(f"neuron_lstm: {{model: {{args: {{x: {flow(value)}}}}}, {block}}}", "f")

    assert config.model.args == {"x": value}
