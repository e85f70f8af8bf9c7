"""Partitions of one model's sessions over the shards of a cluster: hash tags, limits, and membership.

The number of partitions does not depend on that of shards: a cluster that gets another shard moves whole partitions.
"""

from __future__ import annotations

from binascii import crc_hqx
from dataclasses import replace
from itertools import count
from urllib.parse import quote

from ..settings import PARTITIONS, Limits

SLOTS = 16384
"""Hash slots of a cluster; a shard has a range of them."""


def partition_of(key: bytes) -> int:
    """Return the partition of the session with this store key: every one is equally likely."""
    return key[0] % PARTITIONS


def hash_slot(tag: str) -> int:
    """Return the hash slot of the keys with this tag: CRC16 (XMODEM), as the servers compute it.

    >>> hash_slot("123456789")
    12739
    """
    return crc_hqx(tag.encode(), 0) % SLOTS


def partition_tags(model: str) -> list[str]:
    """Return the hash tag of each partition.

    The slot of partition i is in the i-th sixteenth of all slots. So shards with equal ranges of slots get equal
    numbers of partitions.

    >>> [hash_slot(tag) // (SLOTS // PARTITIONS) for tag in partition_tags("tagger")] == list(range(PARTITIONS))
    True
    """
    name = quote(model, safe="")
    tags: dict[int, str] = {}
    for suffix in count():
        tag = f"{name}:{suffix}"
        tags.setdefault(hash_slot(tag) * PARTITIONS // SLOTS, tag)
        if len(tags) == PARTITIONS:
            break
    return [tags[partition] for partition in range(PARTITIONS)]


def partition_limits(limits: Limits) -> Limits:
    """Return the limits of one partition: its share of sessions and bytes.

    All partitions together never have more than the limits. A client's share of sessions is rounded up: one that may
    have less than one in each partition can still start.

    >>> partition_limits(Limits(sessions=10_000, bytes=2**30, idle_seconds=600, client_sessions=100))
    Limits(sessions=625, bytes=67108864, idle_seconds=600, retry_seconds=60.0, confirm_seconds=60.0, client_sessions=7)
    """
    of_client = limits.client_sessions
    return replace(
        limits,
        sessions=limits.sessions // PARTITIONS,
        bytes=limits.bytes // PARTITIONS,
        client_sessions=None if of_client is None else -(-of_client // PARTITIONS),
    )
