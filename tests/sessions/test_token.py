import hmac
import os
import re
import stat
import subprocess
import sys
from base64 import urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from torchserve_neuron_lstm.sessions.token import (
    InvalidTokenError,
    SigningKeyError,
    TokenState,
    sign_token,
    signing_keys_from_environment,
    signing_keys_from_file,
    token_length,
    verify_token,
)

KEY = bytes(range(32))
SESSION = TokenState(12, b"model of sixteen", b"state" * 3, 1_700_000_000)

states = st.builds(
    TokenState,
    steps=st.sampled_from((0, 1, 2**64 - 1)) | st.integers(0, 1000),
    model=st.binary(min_size=16, max_size=16),
    state=st.binary(max_size=200),
    issued=st.integers(0, 2**64 - 1),
)
keys = st.binary(min_size=32, max_size=32)


@given(states, keys)
def test_a_token_is_verified_as_it_was_signed(session: TokenState, key: bytes) -> None:
    token = sign_token(session, key)

    assert verify_token(token, [key], len(session.state)) == session
    assert re.fullmatch("[A-Za-z0-9_-]*", token)
    assert len(token) == token_length(len(session.state))


def test_every_character_of_one_token_counts() -> None:
    token = sign_token(SESSION, KEY)
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_+/="
    for place, before in enumerate(token):
        for character in alphabet.replace(before, ""):
            with pytest.raises(InvalidTokenError):
                verify_token(token[:place] + character + token[place + 1 :], [KEY], 1000)


@given(states, st.data())
def test_a_token_of_another_length_is_refused(session: TokenState, data: st.DataObject) -> None:
    token = sign_token(session, KEY)

    with pytest.raises(InvalidTokenError):
        verify_token(token[: data.draw(st.integers(0, len(token) - 1))], [KEY], 1000)
    with pytest.raises(InvalidTokenError):
        verify_token(token + data.draw(st.text("A-=\n ", min_size=1, max_size=4)), [KEY], 1000)


@given(st.text(max_size=300))
@example("")
@example("A" * 76)
@example("A" * 77)  # no length that base64 has
@example("\ud800")
def test_no_text_is_a_token_by_chance(text: str) -> None:
    with pytest.raises(InvalidTokenError):
        verify_token(text, [KEY], 1000)


@given(states, keys, keys)
def test_another_key_opens_nothing(session: TokenState, key: bytes, other: bytes) -> None:
    if key != other:
        with pytest.raises(InvalidTokenError, match="was not made by this server, or was changed"):
            verify_token(sign_token(session, key), [other], 1000)


@given(states, keys, keys)
def test_while_a_key_is_replaced_tokens_of_both_are_verified(session: TokenState, new: bytes, old: bytes) -> None:
    for key in (new, old):
        token = sign_token(session, key)
        assert verify_token(token, [new, old], 200) == verify_token(token, [old, new], 200) == session


def test_a_state_that_is_larger_than_any_of_the_model_is_refused_unread() -> None:
    with pytest.raises(InvalidTokenError, match="has up to 107 characters, this one has 10000000"):
        verify_token("A" * 10_000_000, [KEY], len(SESSION.state))
    with pytest.raises(InvalidTokenError, match="has up to 106 characters, this one has 107"):
        verify_token(sign_token(SESSION, KEY), [KEY], len(SESSION.state) - 1)


@pytest.mark.parametrize(
    ("content", "refusal"),
    [
        (bytes((2,)) + bytes(32), "of version 2 cannot be read, only 1; start again"),
        (bytes((1,)) + bytes(31), "was not made by this server"),
    ],
)
def test_signed_content_of_another_form_is_refused(content: bytes, refusal: str) -> None:
    """Another version of this software may sign with the same key."""
    signature = hmac.digest(KEY, b"neuron-lstm session token\n" + content, "sha256")
    token = urlsafe_b64encode(content + signature).rstrip(b"=").decode()

    with pytest.raises(InvalidTokenError, match=refusal):
        verify_token(token, [KEY], 100)


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(33)])
def test_a_key_of_another_length_is_never_used(key: bytes) -> None:
    """A short key could be guessed."""
    with pytest.raises(ValueError, match="a key of 32 bytes"):
        sign_token(SESSION, key)


@pytest.mark.parametrize(
    ("steps", "model", "issued"), [(-1, bytes(16), 0), (2**64, bytes(16), 0), (0, b"short", 0), (0, bytes(16), -1)]
)
def test_a_session_that_fits_no_token_is_refused(steps: int, model: bytes, issued: int) -> None:
    with pytest.raises(ValueError):
        sign_token(TokenState(steps, model, b"", issued), KEY)


def test_a_key_is_made_once(tmp_path: Path) -> None:
    (key,) = keys = signing_keys_from_file(tmp_path / "keys" / "key")

    assert len(key) == 32
    assert signing_keys_from_file(tmp_path / "keys" / "key") == keys
    assert signing_keys_from_file(tmp_path / "other") != keys
    assert [path.name for path in (tmp_path / "keys").iterdir()] == ["key"]


@pytest.mark.parametrize("mask", [0o000, 0o777], ids=oct)
def test_nobody_else_can_read_a_key(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        signing_keys_from_file(tmp_path / "key")
    finally:
        os.umask(before)

    assert oct(stat.S_IMODE((tmp_path / "key").stat().st_mode)) == "0o600"


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """Other users may have read it already, and the operator must know."""
    signing_keys_from_file(tmp_path / "key")
    (tmp_path / "key").chmod(0o640)

    told = r"others can read the signing key of session tokens in .*: remove the permission with `chmod"
    with pytest.raises(SigningKeyError, match=told):
        signing_keys_from_file(tmp_path / "key")


def test_a_link_to_a_key_is_refused(tmp_path: Path) -> None:
    """Whoever made the link may know the key behind it. A link that leads nowhere makes no key either."""
    (tmp_path / "keys").mkdir(mode=0o700)
    for target in (tmp_path / "elsewhere", tmp_path / "nowhere"):
        (tmp_path / "keys" / "key").unlink(missing_ok=True)
        (tmp_path / "keys" / "key").symlink_to(target)
        (tmp_path / "elsewhere").write_text("ab" * 32)
        (tmp_path / "elsewhere").chmod(0o600)
        with pytest.raises(SigningKeyError, match=r"key is a link: put the file there"):
            signing_keys_from_file(tmp_path / "keys" / "key")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_what_is_no_file_is_no_key(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Nobody waits for the writer of a pipe."""
    make(tmp_path / "key")
    with pytest.raises(SigningKeyError, match=r"is not a regular file|cannot be kept in"):
        signing_keys_from_file(tmp_path / "key")


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o1777], ids=oct)
def test_a_folder_in_which_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    """They could put a key of theirs in the place of ours; nothing is made there."""
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys").chmod(mode)
    with pytest.raises(SigningKeyError, match=r"can write to the folder of the signing key .*`chmod go-w`"):
        signing_keys_from_file(tmp_path / "keys" / "key")
    assert list((tmp_path / "keys").iterdir()) == []


@pytest.mark.parametrize("of_another", ["key", "folder"])
def test_a_key_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_another: str) -> None:
    """The other user knows the key, or can replace it. The system's own files are those of root."""
    file = tmp_path / "keys" / "key"
    signing_keys_from_file(file)
    owner, reader = 65_534, os.geteuid()
    if reader == 0:
        os.chown(file if of_another == "key" else file.parent, owner, -1)
    else:  # only root can give a file away: the reader is another user instead
        monkeypatch.setattr(os, "geteuid", lambda: reader + 1)
    with pytest.raises(SigningKeyError, match="belongs to another user"):
        signing_keys_from_file(file)


def test_a_key_is_replaced_by_a_new_one_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new, old = "ab" * 32, "cd" * 32
    for text in (f"{new}\n{old}\n", f"{new} {old}", f"{new},{old}"):
        (tmp_path / "key").write_text(text)
        (tmp_path / "key").chmod(0o600)
        monkeypatch.setenv("TOKEN_KEY", text)
        expected = (bytes.fromhex(new), bytes.fromhex(old))
        assert signing_keys_from_file(tmp_path / "key") == signing_keys_from_environment("TOKEN_KEY") == expected


def test_processes_that_need_a_key_at_once_have_the_same(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from torchserve_neuron_lstm.sessions.token import *; sys.stdin.readline();"
        "print([signing_keys_from_file(pathlib.Path(file))[0].hex() for file in sys.argv[1:]])"
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


@pytest.mark.parametrize(
    "text",
    [
        *("ab" * 31, "ab" * 33, f"{'ab' * 32} {'ab' * 31}", " ".join(["ab" * 32] * 3)),
        *(" ,", "xy" * 32, "0x" + "ab" * 31, "٠" * 64, "not a key"),
    ],
)
def test_what_is_no_key_is_refused_and_not_repeated(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text may be nearly a key."""
    monkeypatch.setenv("TOKEN_KEY", text)
    (tmp_path / "key").write_text(text, "utf-8")
    (tmp_path / "key").chmod(0o600)

    said = "has no signing key of session tokens, which is 64 hex digits"
    with pytest.raises(SigningKeyError, match=f"TOKEN_KEY {said}") as in_variable:
        signing_keys_from_environment("TOKEN_KEY")
    with pytest.raises(SigningKeyError, match=said) as in_file:
        signing_keys_from_file(tmp_path / "key")
    assert text not in f"{in_variable.value} {in_file.value}"


def test_a_missing_key_is_told_with_the_way_to_make_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKEN_KEY", raising=False)
    way_out = r"TOKEN_KEY, which holds the .* key .*, is not set: make one with `openssl rand -hex 32`"
    with pytest.raises(SigningKeyError, match=way_out):
        signing_keys_from_environment("TOKEN_KEY")
    (tmp_path / "file").write_text("")
    with pytest.raises(SigningKeyError, match=r"cannot be kept in .*file/key: "):
        signing_keys_from_file(tmp_path / "file" / "key")
