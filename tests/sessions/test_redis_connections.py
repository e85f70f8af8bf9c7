"""Answers of a cluster's nodes: the servers of slots, and errors that pass, stay or name another server."""

import pytest
from redis import exceptions

from torchserve_neuron_lstm.sessions.redis.connections import Retryable, read_answer, read_owners
from torchserve_neuron_lstm.sessions.redis.node import Address
from torchserve_neuron_lstm.sessions.settings import RedisSettings
from torchserve_neuron_lstm.sessions.store import StoreUnavailableError

ASKED = Address("cache", 6379)
SETTINGS = RedisSettings("redis://cache", cluster=True)
SLOTS = [[5461, 16383, [b"10.0.0.2", 6379, b"second", []], [None, 6380, b"replica"]], [0, 5460, [b"?", 7000, b"first"]]]


def test_each_slot_has_the_server_that_is_told_first_or_none() -> None:
    """Replicas have no slots; a host that is not named is that of the server that was asked."""
    owners, addresses = read_owners(SLOTS, [0, 5460, 5461, 16383], ASKED)

    assert owners == dict(enumerate([Address("cache", 7000)] * 2 + [Address("10.0.0.2", 6379)] * 2))
    assert addresses == (Address("10.0.0.2", 6379), Address("cache", 6380), Address("cache", 7000))
    for reply in (SLOTS[:1], []):  # the slot's server was removed, or failed without a replica
        assert read_owners(reply, [0], ASKED)[0] == {}


@pytest.mark.parametrize(
    ("error", "address"),
    [
        ("7 10.0.0.2:6379", Address("10.0.0.2", 6379)),
        ("7 :6380", Address("cache", 6380)),
        ("7 fd00::1:6380", Address("fd00::1", 6380)),
    ],
)
def test_an_answer_may_name_another_server(error: str, address: Address) -> None:
    answer = read_answer(SETTINGS, [b"value", exceptions.MovedError(error)], ASKED)
    assert isinstance(answer, Retryable)
    assert (answer.moved_to, answer.may_have_run) == (address, False)


@pytest.mark.parametrize(
    ("error", "may_have_run"),
    [
        (exceptions.AskError("7 10.0.0.2:6379"), False),
        (exceptions.TryAgainError("Multiple keys request during rehashing of slot"), False),
        (exceptions.ClusterDownError("Hash slot not served"), False),
        (exceptions.MasterDownError("Link with MASTER is down"), False),
        (exceptions.BusyLoadingError("Redis is loading the dataset in memory"), False),
        (exceptions.NoScriptError("No matching script"), False),
        (exceptions.ResponseError("Lua script attempted to access a non local key in a cluster node"), True),
    ],
    ids=str,
)
def test_some_errors_pass(error: Exception, may_have_run: bool) -> None:
    """The same commands are sent again. A script that was ended may have made changes."""
    answer = read_answer(SETTINGS, [error], ASKED)
    assert isinstance(answer, Retryable)
    assert (answer.error.__cause__, answer.may_have_run, answer.moved_to) == (error, may_have_run, None)


def test_other_errors_stay() -> None:
    error = exceptions.NoPermissionError("this user has no permissions")
    assert isinstance(read_answer(SETTINGS, [b"value", error], ASKED), StoreUnavailableError)
    assert read_answer(SETTINGS, [b"value", None], ASKED) == [b"value", None]
