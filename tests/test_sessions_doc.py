"""The examples of docs/sessions.md work: its commands, its YAML, and the messages that it quotes."""

import json
import os
import random
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, get_args, get_type_hints

import pytest
import torch
import warm_archiver
import yaml
from archiving import model_class
from shown import blocks
from worker import WorkerResponse, loaded, predict, request

from torchserve_neuron_lstm import open_archive
from torchserve_neuron_lstm.config.load import load_config, parse_config
from torchserve_neuron_lstm.config.streaming import SessionFieldsConfig, StreamingConfig
from torchserve_neuron_lstm.handlers.responses import STATUSES
from torchserve_neuron_lstm.sessions.decision import Reject
from torchserve_neuron_lstm.sessions.redis.shard_commands import partition_limits
from torchserve_neuron_lstm.sessions.session import MAX_CHARACTERS, make_id
from torchserve_neuron_lstm.sessions.settings import PARTITIONS, Limits
from torchserve_neuron_lstm.sessions.token import token_length

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "sessions.md").read_text(encoding="utf-8")
SPACE = "neuron_lstm:\n  inputs: {ids: {dtype: int64, shape: [batch, time]}}\n  buckets: {batch: [1], length: [8]}\n"
STANDS_FOR = "…"


def conversation() -> list[tuple[list[str], str]]:
    shown = [block.splitlines() for block in blocks(TEXT, "console")]
    return [(shlex.split(command.removeprefix("$ ")), answer) for command, answer in shown]


def asked(words: list[str]) -> dict[str, Any]:
    given = [words[place + 1] for place, word in enumerate(words) if word == "-H"]
    headers = dict(line.split(": ", 1) for line in given)
    body = words[words.index("-d") + 1].encode() if "-d" in words else None
    return request(body, headers.get("Content-Type", ""), headers)


def agrees(shown: Any, found: Any) -> bool:
    """Whether an answer agrees with the shown one, where `…` is any text and `[…]` any list."""
    if shown == STANDS_FOR:
        return isinstance(found, str)
    if shown == [STANDS_FOR]:
        return isinstance(found, list)
    if isinstance(shown, dict) and isinstance(found, dict):
        return shown.keys() == found.keys() and all(agrees(shown[key], found[key]) for key in shown)
    return bool(shown == found)


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tagger")
    (code,) = (block for block in blocks((ROOT / "README.md").read_text(), "python") if block.startswith("# model.py"))
    (folder / "model.py").write_text(code.replace(", bidirectional=True", "").replace("2 * hidden", "hidden"))
    config = next(block for block in blocks(TEXT, "yaml") if block.startswith("neuron_lstm:"))
    (folder / "model-config.yaml").write_text(f"{config}  backend: eager\n")
    torch.manual_seed(0)
    torch.save(model_class(folder / "model.py")().state_dict(), folder / "weights.pt")
    words = "neuron-lstm archive --model-name tagger --version 1.0 --archive-format no-archive"
    files = "--model-file model.py --serialized-file weights.pt --config-file model-config.yaml"
    assert warm_archiver.run([*words.split(), *files.split()], folder, os.environ).returncode == 0
    return folder


@pytest.fixture(scope="module")
def answers(tagger: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[WorkerResponse]]:
    """The responses of a worker to each command of the page, in order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEURON_LSTM_SESSIONS", str(tmp_path_factory.mktemp("kept") / "sessions"))
        with loaded(tagger / "tagger") as service:
            yield [predict(service, [asked(words)])[0] for words, _ in conversation()]


@pytest.mark.ci
def test_the_example_of_the_python_page_answers_each_chunk(
    tagger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEURON_LSTM_SESSIONS", str(tmp_path / "sessions"))
    Path(shutil.make_archive("tagger", "zip", tagger / "tagger")).rename("tagger.mar")
    _, example = blocks((ROOT / "docs" / "python.md").read_text(encoding="utf-8"), "python")
    scope: dict[str, Any] = {"open_archive": open_archive}

    exec(example, scope)

    assert (len(scope["first"]), len(scope["rest"]), scope["session"].step) == (2, 1, 3)


@pytest.mark.ci
def test_the_conversation_goes_as_shown(answers: list[WorkerResponse]) -> None:
    shown = [json.loads(answer.replace("[…]", '["…"]')) for _, answer in conversation()]

    assert len(shown) >= 7
    for told, expected in zip(answers, shown, strict=True):
        found = json.loads(told.body)
        assert told.status == found.get("code", 200)
        assert agrees(expected, found), (expected, found)


def test_id_and_step_are_headers_of_every_answer(answers: list[WorkerResponse]) -> None:
    for told in answers:
        found = json.loads(told.body)
        for name in ("ts_request_sequence_id", "ts_request_sequence_step"):
            assert told.headers.get(name) == (str(found[name]) if told.status == 200 else None)


def test_a_piece_that_is_sent_again_gets_the_same_bytes(answers: list[WorkerResponse]) -> None:
    commands = [words for words, _ in conversation()]

    assert commands[3] == commands[2]
    assert answers[3].body == answers[2].body


def test_the_pieces_are_answered_as_the_whole_sequence(tagger: Path, answers: list[WorkerResponse]) -> None:
    model = model_class(tagger / "model.py")().eval()
    model.load_state_dict(torch.load(tagger / "weights.pt", weights_only=True))
    with torch.inference_mode():
        expected = model(torch.tensor([[5, 17, 99, 42, 7]]), torch.tensor([5]))[0]
    tags = json.loads(answers[1].body)["tags"] + json.loads(answers[2].body)["tags"]

    torch.testing.assert_close(torch.tensor(tags), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("block", blocks(TEXT, "yaml"), ids=lambda block: block.split(":")[0])
def test_every_configuration_is_valid(block: str, tmp_path: Path) -> None:
    whole = block if block.startswith("neuron_lstm:") else SPACE + "".join(f"  {line}\n" for line in block.splitlines())
    assert parse_config(whole, "docs/sessions.md", tmp_path).streaming is not None


def test_the_settings_that_are_shown_are_the_defaults() -> None:
    written: dict[str, Any] = {}
    for block in blocks(TEXT, "yaml"):
        if block.startswith("streaming:"):
            written |= yaml.safe_load(block)["streaming"]

    defaults = StreamingConfig()
    shown = ("idle_seconds", "max_sessions", "max_bytes", "confirm_seconds", "client_sessions", "token_seconds")
    assert [written[key] for key in shown] == [getattr(defaults, key) for key in shown]
    assert set(written) == set(StreamingConfig.model_fields) - {"fields"}


def test_the_table_of_fields_has_each_by_its_name() -> None:
    rows = re.findall(r"^\| `(ts_\w+)` \|", TEXT, re.MULTILINE)

    assert rows == [field.default for field in SessionFieldsConfig.model_fields.values()]


def test_the_table_of_statuses_has_every_kind_with_its_status() -> None:
    rows = re.findall(r"^\| (\d{3}) \| (.*?) \|", TEXT, re.MULTILINE)
    told = {(code, kind) for code, kinds in rows for kind in re.findall(r"`(\w+)`", kinds)}
    sources = [path.read_text() for path in (ROOT / "handlers" / "streaming").glob("*.py")]
    kinds_raised = {kind for source in sources for kind in re.findall(r'RequestError\(\s*"(\w+)"', source)}
    raised = {(str(STATUSES[kind]), kind) for kind in kinds_raised}
    decided = set(get_args(get_type_hints(Reject)["kind"]))

    assert raised <= told
    assert decided <= {kind for _, kind in told}
    assert {kind for _, kind in told} == {kind for _, kind in raised} | decided | {"InvalidInput"}


def test_numbers_of_the_page_are_those_of_the_code() -> None:
    assert f"| 1 to {MAX_CHARACTERS} of `A-Z" in TEXT
    assert f"or the generated one: {len(make_id())} characters" in TEXT
    assert f"which carry 4096 bytes, {token_length(4096)} characters." in TEXT
    assert f"for {Limits(1, 1, 1.0).retry_seconds:g} seconds" in TEXT
    assert f"({StreamingConfig().settings('0' * 32).limits.own_bytes} bytes each by default)" in TEXT


def open_at_first_refusal(share: int, seed: int) -> int:
    """Start sessions with random ids until the partition of one is full, and return how many are open."""
    choice, held = random.Random(seed), [0] * PARTITIONS
    while max(held) <= share:
        held[choice.randrange(PARTITIONS)] += 1
    return sum(held) - 1


def refused_share(mean: float, places: int) -> float:
    """The share of starts that a partition refuses, by Erlang's formula.

    `mean` sessions would be open without a limit.
    """
    share = 1.0
    for place in range(1, places + 1):
        share = mean * share / (place + mean * share)
    return share


@pytest.mark.ci
def test_refusals_of_a_cluster_begin_where_the_page_says() -> None:
    defaults = StreamingConfig()
    limits = Limits(defaults.max_sessions, defaults.max_bytes, 600.0, client_sessions=defaults.client_sessions)
    share = partition_limits(limits)
    assert share.client_sessions is not None
    first = sorted(open_at_first_refusal(share.sessions, seed) for seed in range(300))
    of_client = sorted(open_at_first_refusal(share.client_sessions, seed) for seed in range(3000))
    told = re.sub(r"\s+", " ", TEXT)

    assert f"With {limits.sessions} sessions, a partition takes {share.sessions}" in told
    assert (abs(median(first) - 9300) < 100, abs(first[3] - 8800) < 100) == (True, True)
    assert "at about 9300 open sessions (in one of a hundred cases at 8800)" in told
    rates = [1 / refused_share(mean / PARTITIONS, share.sessions) for mean in (9000, 9500)]
    assert [round(rates[0], -2), round(rates[1], -1)] == [1800, 130]
    assert "If 9000 are open on average, one start in 1800 is refused, with 9500 one in 130." in told
    most = PARTITIONS * share.client_sessions
    assert f"{share.client_sessions} in each partition for 100, so a client may have {most} at most" in told
    assert (abs(median(of_client) - 60) < 5, abs(of_client[30] - 30) < 5) == (True, True)
    assert "its first start is refused at about 60 sessions (in one of a hundred cases at 30)" in told


def test_presets_of_the_page_are_valid() -> None:
    for preset in re.findall(r"`(config/presets/[\w.-]+)`", TEXT):
        load_config(ROOT / preset)
