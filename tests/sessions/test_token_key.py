from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from torchserve_neuron_lstm.sessions.token import SigningKeyError, signing_key_from_environment, signing_key_from_file


def test_a_key_is_made_once(tmp_path: Path) -> None:
    """All readers get the same key, and no other file remains."""
    key = signing_key_from_file(tmp_path / "keys" / "key")

    assert len(key) == 32
    assert signing_key_from_file(tmp_path / "keys" / "key") == key
    assert signing_key_from_file(tmp_path / "other") != key
    assert [path.name for path in (tmp_path / "keys").iterdir()] == ["key"]


@pytest.mark.parametrize("mask", [0o000, 0o777], ids=oct)
def test_nobody_else_can_read_a_key(tmp_path: Path, mask: int) -> None:
    """This holds for any umask."""
    before = os.umask(mask)
    try:
        signing_key_from_file(tmp_path / "key")
    finally:
        os.umask(before)

    assert oct(stat.S_IMODE((tmp_path / "key").stat().st_mode)) == "0o600"


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """Other users may have read it already, and the operator must know."""
    signing_key_from_file(tmp_path / "key")
    (tmp_path / "key").chmod(0o640)

    with pytest.raises(
        SigningKeyError,
        match=r"others can read the signing key of session tokens in .*: remove the permission with `chmod",
    ):
        signing_key_from_file(tmp_path / "key")


def test_processes_that_need_a_key_at_once_have_the_same(tmp_path: Path) -> None:
    """No process reads a partial key, and none makes its own."""
    code = (
        "import sys, pathlib; from torchserve_neuron_lstm.sessions.token import *; sys.stdin.readline();"
        "print([signing_key_from_file(pathlib.Path(file)).hex() for file in sys.argv[1:]])"
    )
    command = [sys.executable, "-c", code, *(f"{tmp_path / str(number)}" for number in range(100))]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(3)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"now\n")
        process.stdin.flush()
    keys = {process.communicate(timeout=60)[0] for process in processes}

    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(keys) == 1
    assert len(list(tmp_path.iterdir())) == 100


def test_the_key_of_a_file_is_good_for_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second host can use the key of the first one."""
    key = signing_key_from_file(tmp_path / "key")
    monkeypatch.setenv("TOKEN_KEY", (tmp_path / "key").read_text())

    assert signing_key_from_environment("TOKEN_KEY") == key


@pytest.mark.parametrize("text", ["ab" * 31, "ab" * 33, "xy" * 32, "0x" + "ab" * 31, "٠" * 64, "not a key"])
def test_what_is_no_key_is_refused_and_not_repeated(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text may be nearly a key."""
    monkeypatch.setenv("TOKEN_KEY", text)
    (tmp_path / "key").write_text(text, "utf-8")
    (tmp_path / "key").chmod(0o600)

    with pytest.raises(
        SigningKeyError, match="TOKEN_KEY has no signing key of session tokens, which is 64 hex digits"
    ) as in_variable:
        signing_key_from_environment("TOKEN_KEY")
    with pytest.raises(
        SigningKeyError, match="has no signing key of session tokens, which is 64 hex digits"
    ) as in_file:
        signing_key_from_file(tmp_path / "key")
    assert text not in f"{in_variable.value} {in_file.value}"


def test_a_missing_key_is_told_with_the_way_to_make_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message explains the variable; if a file cannot be created, it has the reason."""
    monkeypatch.delenv("TOKEN_KEY", raising=False)
    with pytest.raises(
        SigningKeyError,
        match=r"TOKEN_KEY, which holds the .* key .*, is not set: make one with `openssl rand -hex 32`",
    ):
        signing_key_from_environment("TOKEN_KEY")
    (tmp_path / "file").write_text("")
    with pytest.raises(SigningKeyError, match=r"cannot be kept in .*file/key: "):
        signing_key_from_file(tmp_path / "file" / "key")
