from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from torchserve_neuron_lstm.sessions.redis import shard_commands
from torchserve_neuron_lstm.sessions.redis.shard_commands import SLOTS, hash_slot, partition_of, partition_tags
from torchserve_neuron_lstm.sessions.session import make_id, store_key
from torchserve_neuron_lstm.sessions.settings import PARTITIONS, Limits

models = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
many_limits = st.builds(
    Limits,
    sessions=st.integers(PARTITIONS, 10**7),
    bytes=st.integers(PARTITIONS, 2**40),
    idle_seconds=st.just(600.0),
    client_sessions=st.none() | st.integers(1, 10**6),
)


@given(models)
def test_each_tag_is_in_its_own_sixteenth_of_the_slots(model: str) -> None:
    """The servers compute the same slot for a whole key, whatever the name of the model is."""
    tags = partition_tags(model)

    assert [hash_slot(tag) // (SLOTS // PARTITIONS) for tag in tags] == list(range(PARTITIONS))
    assert [key_slot(f"neuron-lstm:{{{tag}}}:record:ab".encode()) for tag in tags] == [*map(hash_slot, tags)]


@given(models, models)
def test_no_two_models_share_a_tag(one: str, other: str) -> None:
    """A name may contain what looks like the suffix of another one's tag."""
    assert one == other or not set(partition_tags(one)) & set(partition_tags(other))


def test_the_tags_of_a_model_never_change() -> None:
    """Sessions that are stored would be unknown under other keys."""
    assert partition_tags("tagger")[:4] == ["tagger:1", "tagger:11", "tagger:42", "tagger:60"]


@given(many_limits)
def test_all_partitions_together_keep_to_the_limits(limits: Limits) -> None:
    share = shard_commands.partition_limits(limits)

    assert limits.sessions - PARTITIONS < PARTITIONS * share.sessions <= limits.sessions
    assert limits.bytes - PARTITIONS < PARTITIONS * share.bytes <= limits.bytes
    assert share.sessions > 0
    assert PARTITIONS * share.unconfirmed <= limits.unconfirmed + PARTITIONS
    assert share.own_bytes * share.sessions + share.common_bytes == share.bytes
    if limits.client_sessions is None:
        assert share.client_sessions is None
    else:
        assert share.client_sessions is not None
        assert limits.client_sessions <= PARTITIONS * share.client_sessions < limits.client_sessions + PARTITIONS


def test_sessions_are_spread_evenly() -> None:
    counted = Counter(partition_of(store_key(make_id(), "tagger")) for _ in range(16_000))

    assert set(counted) == set(range(PARTITIONS))
    assert max(counted.values()) < 1250  # eight standard deviations above a thousand
    assert min(counted.values()) > 750
