"""Answers of a cluster's nodes: the servers of slots, and errors that pass, stay or name another one."""

from __future__ import annotations

import pytest
from redis import exceptions

from torchserve_neuron_lstm.sessions.redis.client import Address
from torchserve_neuron_lstm.sessions.redis.topology import Later, Redirection, read_answer, read_topology

ASKED = Address("cache", 6379)
SLOTS = [
    [5461, 16383, [b"10.0.0.2", 6379, b"second", []], [None, 6380, b"replica"]],
    [0, 5460, [b"?", 7000, b"first"]],
]


def test_each_slot_has_the_server_that_is_told_first() -> None:
    """Replicas are known, but own nothing; a host that is not told is that of the server that was asked."""
    topology = read_topology(SLOTS, ASKED)

    assert [topology.owner(slot) for slot in (0, 5460)] == [Address("cache", 7000)] * 2
    assert [topology.owner(slot) for slot in (5461, 16383)] == [Address("10.0.0.2", 6379)] * 2
    assert topology.nodes == (Address("10.0.0.2", 6379), Address("cache", 6380), Address("cache", 7000))


def test_a_slot_may_have_no_server() -> None:
    """Its server was removed, or failed without a replica."""
    assert read_topology(SLOTS[:1], ASKED).owner(0) is None
    assert read_topology([], ASKED).owner(0) is None


@pytest.mark.parametrize(
    ("error", "address"),
    [
        (exceptions.MovedError("7 10.0.0.2:6379"), Address("10.0.0.2", 6379)),
        (exceptions.ResponseError("MOVED 7 :6380"), Address("cache", 6380)),
        (exceptions.ResponseError("MOVED 7 fd00::1:6380"), Address("fd00::1", 6380)),
    ],
    ids=str,
)
def test_an_answer_may_name_another_server(error: Exception, address: Address) -> None:
    """Releases of the client differ in whether they know the error."""
    assert read_answer([b"value", error], ASKED) == Redirection(address)


@pytest.mark.parametrize(
    "error",
    [
        exceptions.AskError("7 10.0.0.2:6379"),
        exceptions.TryAgainError("Multiple keys request during rehashing of slot"),
        exceptions.ClusterDownError("Hash slot not served"),
        exceptions.BusyLoadingError("Redis is loading the dataset in memory"),
        exceptions.ResponseError("TRYAGAIN Multiple keys request during rehashing of slot"),
    ],
    ids=str,
)
def test_some_errors_pass(error: Exception) -> None:
    """The same commands are sent again."""
    assert read_answer([error], ASKED) == Later(error)


def test_a_script_that_was_ended_may_have_made_changes() -> None:
    """The same commands are sent again, and a conflict is then no proof that nothing was changed."""
    error = exceptions.ResponseError("Lua script attempted to access a non local key in a cluster node")
    assert read_answer([error], ASKED) == Later(error, may_have_run=True)


def test_other_errors_stay() -> None:
    """A repetition would give the same error. Without an error, the replies are returned."""
    error = exceptions.NoPermissionError("this user has no permissions")
    assert read_answer([b"value", error], ASKED) is error
    assert read_answer([b"value", None], ASKED) == [b"value", None]
