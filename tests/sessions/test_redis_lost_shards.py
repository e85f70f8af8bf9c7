import logging
import os
import signal
import time

import pytest
from redis_cluster import LocalCluster
from store_calls import begin, records, revision

from torchserve_neuron_lstm.sessions.redis.shard_commands import hash_slot
from torchserve_neuron_lstm.sessions.settings import PARTITIONS
from torchserve_neuron_lstm.sessions.store import RecordUpdate, StoreUnavailableError, Written

from .redis_stores import NAMES, TAGS, MakeStore, errors, partitions_of, write


@pytest.mark.ci
def test_a_shard_that_was_killed_fails_its_own_sessions_until_a_replica_takes_over(
    replicated: LocalCluster, store_on: MakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    store = store_on(replicated.url, replicas=1)
    for number in range(20):
        assert write(store, b"%d" % number) == [Written()] * PARTITIONS
    changes = [RecordUpdate(name, b"next", revision(store, name)) for name in NAMES]
    killed = replicated.primaries[1]
    theirs = partitions_of(replicated, killed)
    hasty = store_on(replicated.url, timeout_seconds=0.5)
    assert records(hasty.read(NAMES)) == [b"19"] * PARTITIONS
    killed.kill()

    found = hasty.read(NAMES)

    assert errors(found) == theirs
    assert records([one for one in found if not isinstance(one, StoreUnavailableError)]) == [b"19"] * (16 - len(theirs))
    assert errors(hasty.write(changes)) == theirs
    assert hasty.write([]) == []
    with pytest.raises(StoreUnavailableError, match="cannot be used"):
        hasty.totals()
    with pytest.raises(StoreUnavailableError, match="cannot be used"):
        hasty.read([NAMES[theirs[0]]])
    promoted = replicated.wait_for_failover(hash_slot(TAGS[theirs[0]]), killed)
    assert promoted is not killed
    patient = store_on(replicated.servers[2].url)
    assert records(patient.read([NAMES[one] for one in theirs])) == [b"19"] * len(theirs)
    assert patient.write([changes[one] for one in theirs]) == [Written()] * len(theirs)
    with caplog.at_level(logging.INFO):
        time.sleep(0.5)
        assert records(hasty.read(NAMES)) == [b"next"] * PARTITIONS
    assert f"has partitions {theirs} again" in caplog.text
    killed.start()
    replicated.wait_until_complete()
    assert replicated.replicas_of(promoted) == [killed]
    assert write(store, b"in the end") == [Written()] * PARTITIONS


@pytest.mark.ci
def test_a_request_waits_for_a_failover_within_its_time_limit(replicated: LocalCluster, store_on: MakeStore) -> None:
    store = store_on(replicated.url)
    write(store, b"record")
    replicated.primaries[0].kill()

    assert write(store, b"next") == [Written()] * PARTITIONS


@pytest.mark.ci
def test_a_shard_without_its_replica_refuses_its_own_sessions(replicated: LocalCluster, store_on: MakeStore) -> None:
    """The change may have been made; other shards have their replicas."""
    store = store_on(replicated.url, replicas=1, timeout_seconds=2.0)
    begin(store, *NAMES)
    primary = replicated.primaries[2]
    (replica,) = replicated.replicas_of(primary)
    changes = [RecordUpdate(name, b"next", revision(store, name)) for name in NAMES]
    replica.kill()

    outcomes = store.write(changes)

    assert errors(outcomes) == partitions_of(replicated, primary)
    (message,) = {str(outcomes[one]) for one in errors(outcomes)}
    assert message.startswith(f"the session store {primary.url}/0 has 0 replicas that are up to date")


@pytest.mark.ci
def test_a_shard_that_hangs_is_not_waited_for_by_every_batch(cluster: LocalCluster, store_on: MakeStore) -> None:
    store = store_on(cluster.url, timeout_seconds=2.0)
    write(store, b"record")
    hanging = cluster.primaries[1]
    theirs = partitions_of(cluster, hanging)
    os.kill(hanging.pid, signal.SIGSTOP)
    try:
        assert errors(store.read(NAMES)) == theirs
        found = store.read(NAMES)
    finally:
        os.kill(hanging.pid, signal.SIGCONT)
    assert errors(found) == theirs
    assert "did not answer within 2 seconds" in str(found[theirs[0]])
    cluster.wait_until_complete()
    time.sleep(2.0)
    assert errors(store.read(NAMES)) == []
