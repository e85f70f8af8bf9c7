import io
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pytest

from torchserve_neuron_lstm import open_archive
from torchserve_neuron_lstm.bucketing.shapes import TensorSpec
from torchserve_neuron_lstm.config.manifest import Manifest
from torchserve_neuron_lstm.hosts.example_request import curl_command
from torchserve_neuron_lstm.inference.reader import ArchiveReader

URL = "http://127.0.0.1:8000"
FRAMES = TensorSpec("frames", "float32", ("batch", "time", 2))
MASK = TensorSpec("mask", "bool", ("time", "batch"))


@pytest.fixture
def manifest(archive: Path) -> Manifest:
    return ArchiveReader(archive).manifest()


def body(command: str) -> object:
    """The body that the shell gives to curl."""
    words = shlex.split(command)
    return json.loads(words[words.index("-d") + 1])


def test_the_model_answers_the_request(archive: Path, manifest: Manifest) -> None:
    command = curl_command(URL, "sums", manifest)

    assert shlex.split(command)[-1] == f"{URL}/predictions/sums"
    with open_archive(archive, threads=1) as model:
        (answer,) = model.answer_lines(io.BytesIO(json.dumps(body(command)).encode()))
    assert not answer.is_refusal


def test_each_input_has_its_layout_without_a_batch(manifest: Manifest) -> None:
    one, two = replace(manifest, inputs=(FRAMES,)), replace(manifest, inputs=(FRAMES, MASK))

    assert body(curl_command(URL, "m", one)) == [[0.5, 0.5]] * 3
    assert body(curl_command(URL, "m", two)) == {"frames": [[0.5, 0.5]] * 3, "mask": [True] * 3}


@pytest.mark.parametrize(("shortest", "longest", "length"), [(1, 8, 3), (5, 8, 5), (1, 2, 2)])
def test_the_length_is_one_that_the_model_takes(manifest: Manifest, shortest: int, longest: int, length: int) -> None:
    command = curl_command(URL, "m", replace(manifest, shortest=shortest, longest=longest))

    assert body(command) == [1] * length


@pytest.mark.parametrize("name", ["$(touch x)", "a b", "a';id;'", "[1-9]", "ä", "?x#y"])
def test_a_shell_reads_nothing_in_a_name(manifest: Manifest, name: str) -> None:
    """Whoever packaged an archive chose the names in it; somebody else pastes the line."""
    two = replace(manifest, inputs=(replace(FRAMES, name=name), MASK))
    words = [
        shlex.split(curl_command(URL, name, each, torchserve=torchserve))
        for each in (two, replace(two, codec="codec:Codec"))
        for torchserve in (False, True)
    ]

    assert {unquote(own[-1]).removeprefix(URL) for own in words} == {f"/predictions/{name}", f"/v2/models/{name}"}
    assert all(re.fullmatch(r"[\w:/.%-]+", own[-1], re.ASCII) for own in words)
    assert set(json.loads(words[0][words[0].index("-d") + 1])) == {name, "mask"}


def test_a_codec_s_requests_are_not_guessed(manifest: Manifest) -> None:
    """The metadata can be had in any case; TorchServe has no path of the V2 protocol for them."""
    coded = replace(manifest, codec="codec:Codec")

    assert curl_command(URL, "m", coded) == f"curl -s {URL}/v2/models/m"
    assert curl_command(URL, "m", coded, torchserve=True) == f"curl -s -H 'describe: True' {URL}/predictions/m"
