"""Topology of a Redis cluster, as its nodes report it, and answers that name another server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional, Union

from .client import Address

_LATER = ("ASK", "TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY")
"""Errors that end with the move of a slot, a failover or the start of a server."""
_IN_A_SCRIPT = "non local key in a cluster node"
"""Part of the error of a script that needs a key which is moving to another server."""
_CODES = {
    "MovedError": "MOVED",
    "AskError": "ASK",
    "TryAgainError": "TRYAGAIN",
    "ClusterDownError": "CLUSTERDOWN",
    "BusyLoadingError": "LOADING",
    "MasterDownError": "MASTERDOWN",
    "ReadOnlyError": "READONLY",
}
"""Classes of the package `redis`, which removes the code from the message."""


class SlotRange(NamedTuple):
    """The slots from `first` to `last`, and the server that has them."""

    first: int
    last: int
    primary: Address


class Topology(NamedTuple):
    """Servers of a cluster."""

    ranges: tuple[SlotRange, ...]
    nodes: tuple[Address, ...]
    """All servers that have slots, and their replicas."""

    def owner(self, slot: int) -> Optional[Address]:
        """Return the server of a slot; None if none has it."""
        return next((found.primary for found in self.ranges if found.first <= slot <= found.last), None)


class Redirection(NamedTuple):
    """Another server has the slot."""

    address: Address


class Later(NamedTuple):
    """The commands can be repeated: the cause of the error is not in the commands."""

    error: Exception
    is_silence: bool = False
    """Whether no server replied in time, so that none gave the reason."""
    may_have_run: bool = False
    """Whether a server may have run some of the commands, or all."""


def read_topology(reply: Sequence[Any], asked: Address) -> Topology:
    """Read the reply to CLUSTER SLOTS.

    A server that names no host means that of the server that was asked.

    >>> read_topology([[0, 16383, [b"10.0.0.1", 6379, b"id"], [b"", 6380, b"id"]]], Address("cache", 6379)).nodes
    (Address(host='10.0.0.1', port=6379), Address(host='cache', port=6380))
    """
    ranges: list[SlotRange] = []
    nodes: dict[Address, None] = {}
    for first, last, *servers in reply:
        addresses = [_address(server, asked) for server in servers]
        ranges.append(SlotRange(int(first), int(last), addresses[0]))
        nodes.update(dict.fromkeys(addresses))
    return Topology(tuple(ranges), tuple(nodes))


def read_answer(replies: Sequence[Any], asked: Address) -> Union[list[Any], Redirection, Later, Exception]:
    """Return the replies to the commands of one partition, or the action that their first error requires.

    While a slot moves, each of its keys is on one of two servers. A server that is asked for what it no longer has, or
    never had, answers ASK: the other one may have it, or may lack other keys of the partition, without saying so. So
    the partition waits until all keys are on one server.

    >>> from redis.exceptions import ResponseError
    >>> read_answer([None, ResponseError("MOVED 7 10.0.0.2:6379")], Address("cache", 6379))
    Redirection(address=Address(host='10.0.0.2', port=6379))
    """
    error = next((reply for reply in replies if isinstance(reply, Exception)), None)
    if error is None:
        return list(replies)
    words = str(error).split()
    code = _CODES.get(type(error).__name__, words[0] if words else "")
    if code == "MOVED":
        host, _, port = words[-1].rpartition(":")
        return Redirection(Address(host or asked.host, int(port)))
    in_a_script = _IN_A_SCRIPT in str(error)
    return Later(error, may_have_run=in_a_script) if code in _LATER or in_a_script else error


def _address(server: Sequence[Any], asked: Address) -> Address:
    host = server[0].decode() if server[0] else ""
    return Address(asked.host if host in ("", "?") else host, int(server[1]))
