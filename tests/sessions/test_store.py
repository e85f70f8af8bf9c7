"""The promises of every store, tried on each of them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_store import Clock, MemoryStore

from torchserve_neuron_lstm.sessions.settings import Limits
from torchserve_neuron_lstm.sessions.store import (
    Conflict,
    LimitExceeded,
    RecordUpdate,
    Store,
    StoredRecord,
    StoreTotals,
    Written,
)

from .conftest import Places

WIDE = Limits(sessions=1000, bytes=1_000_000, idle_seconds=900.0, retry_seconds=60.0)


def begin(store: Store, *names: str, record: bytes = b"record", ended: bool = False) -> None:
    """Begin new sessions."""
    written = store.write([RecordUpdate(name, record, None, ended) for name in names])
    assert written == [Written()] * len(names)


def revision(store: Store, name: str) -> int:
    """The revision of an existing record."""
    (found,) = store.read([name])
    assert found is not None
    return found.revision


def records(found: Sequence[StoredRecord | None]) -> list[bytes | None]:
    """The records that were found, without their revisions, which belong to the store."""
    return [one and one.record for one in found]


def test_a_store_begins_empty(places: Places) -> None:
    """It has no sessions, and none has expired."""
    store = places()(WIDE, Clock())

    assert store.read([]) == []
    assert store.read(["a", "b"]) == [None, None]
    assert store.write([]) == []
    assert store.totals() == StoreTotals(0, 0, None)
    assert store.expired() == 0


def test_what_is_written_is_read_in_the_order_asked_for(places: Places) -> None:
    """This holds for every store object and any bytes."""
    place = places()
    first, second = place(WIDE, Clock()), place(WIDE, Clock())
    every_byte = bytes(range(256)) * 40
    first.write([RecordUpdate("a", every_byte, None), RecordUpdate("b", b"", None)])

    assert records(second.read(["b", "c", "a", "b"])) == [b"", None, every_byte, b""]


def test_a_model_sees_its_own_sessions_only(places: Places) -> None:
    """All models use one place."""
    place = places()
    tagger, scorer = place(WIDE, Clock(), "tagger"), place(WIDE, Clock(), "scorer")
    begin(tagger, "a", record=b"of the tagger")

    assert scorer.read(["a"]) == [None]
    assert scorer.totals() == StoreTotals(0, 0, None)
    begin(scorer, "a", record=b"of the scorer")
    assert records(tagger.read(["a"])) == [b"of the tagger"]


@pytest.mark.parametrize("model", ["a/b", "../up", "..", "%2F", "{x}", "naïve 型", "a*?[b]", "-wal", "x" * 60])
def test_a_model_may_have_any_name(places: Places, model: str) -> None:
    """The sessions of each model stay separate."""
    place = places()
    store, other = place(WIDE, Clock(), model), place(WIDE, Clock(), "tagger")
    begin(store, "a")

    assert records(place(WIDE, Clock(), model).read(["a"])) == [b"record"]
    assert other.read(["a"]) == [None]


def test_only_a_reader_of_the_last_record_can_write_the_next(places: Places) -> None:
    """The first of two writers that have read the same record succeeds."""
    place = places()
    first, second = place(WIDE, Clock()), place(WIDE, Clock())
    begin(first, "a", record=b"0")
    seen = revision(first, "a")

    assert second.write([RecordUpdate("a", b"1", seen)]) == [Written()]
    assert first.write([RecordUpdate("a", b"2", seen)]) == [Conflict()]
    assert records(first.read(["a"])) == [b"1"]


def test_each_change_stands_alone(places: Places) -> None:
    """A conflict of another change in the same call does not affect it."""
    store = places()(WIDE, Clock())
    begin(store, "a", "b")
    stale = revision(store, "a")
    store.write([RecordUpdate("a", b"newer", stale)])

    outcomes = store.write(
        [
            RecordUpdate("a", b"x", stale),
            RecordUpdate("b", b"next", revision(store, "b")),
            RecordUpdate("c", b"c", None),
        ]
    )

    assert outcomes == [Conflict(), Written(), Written()]
    assert records(store.read(["a", "b", "c"])) == [b"newer", b"next", b"c"]


def test_a_session_begins_where_none_is_open(places: Places) -> None:
    """It can replace a session that has ended, but not one that is open."""
    store = places()(WIDE, Clock())
    begin(store, "a")
    assert store.write([RecordUpdate("a", b"again", None)]) == [Conflict()]
    assert store.write([RecordUpdate("a", b"the end", revision(store, "a"), ended=True)]) == [Written()]

    begin(store, "a", record=b"anew")

    assert records(store.read(["a"])) == [b"anew"]
    assert store.totals() == StoreTotals(1, 4, 0.0)


def test_nothing_is_written_in_the_place_of_a_record_that_is_gone(places: Places) -> None:
    """Its session is over, and an update that continues it is a conflict."""
    clock = Clock()
    store = places()(WIDE, clock)
    begin(store, "a")
    seen = revision(store, "a")
    clock.now += 901

    assert store.write([RecordUpdate("a", b"late", seen), RecordUpdate("b", b"never was", seen)]) == [
        Conflict(),
        Conflict(),
    ]
    assert store.read(["a", "b"]) == [None, None]


def test_a_revision_never_comes_again(places: Places) -> None:
    """Otherwise a writer that paused during an end would overwrite another session."""
    store = places()(WIDE, Clock())
    seen = set()
    for _ in range(20):
        begin(store, "a")
        seen.add(revision(store, "a"))
        store.write([RecordUpdate("a", b"the end", revision(store, "a"), ended=True)])
        seen.add(revision(store, "a"))

    assert len(seen) == 40


def test_a_session_expires_when_it_was_idle_for_too_long(places: Places) -> None:
    """The limit is exact; every request extends the time."""
    clock = Clock()
    store = places()(WIDE, clock)
    begin(store, "a", "b")
    clock.now += 900
    store.write([RecordUpdate("b", b"kept", revision(store, "b"))])
    assert records(store.read(["a", "b"])) == [b"record", b"kept"]
    clock.now += 1

    assert records(store.read(["a", "b"])) == [None, b"kept"]
    assert store.totals().sessions == 1
    begin(store, "a", record=b"anew")
    assert records(store.read(["a"])) == [b"anew"]
    assert store.expired() == 1


def test_an_ended_session_is_kept_so_that_its_last_request_can_be_repeated(places: Places) -> None:
    """It is not open, takes bytes, and does not count as expired when it is removed."""
    clock = Clock()
    store = places()(WIDE, clock)
    begin(store, "a", ended=True)
    begin(store, "b")
    clock.now += 60
    assert records(store.read(["a"])) == [b"record"]
    assert store.totals() == StoreTotals(1, 12, 60.0)
    clock.now += 1

    assert store.read(["a"]) == [None]
    begin(store, "c")
    assert store.totals() == StoreTotals(2, 12, 61.0)
    assert store.expired() == 0


def test_expired_records_are_removed_and_counted_once(places: Places) -> None:
    """Any store object may remove them."""
    clock = Clock()
    place = places()
    first, second = place(WIDE, clock), place(WIDE, clock)
    begin(first, *(f"{number}" for number in range(30)))
    clock.now += 1000
    begin(first, "new")
    begin(second, "newer")

    assert first.expired() + second.expired() == 30
    assert first.expired() + second.expired() == 0
    assert first.totals() == second.totals() == StoreTotals(2, 12, 0.0)


def test_many_expired_sessions_are_removed_in_the_course_of_some_writes(places: Places) -> None:
    """The remaining ones count as expired already."""
    clock = Clock()
    store = places()(WIDE, clock)
    begin(store, *(f"{number}" for number in range(500)))
    clock.now += 1000
    expired = []
    for _ in range(4):
        store.write([RecordUpdate("a", b"a", store.read(["a"])[0] and revision(store, "a"))])
        assert store.totals().sessions == 1
        expired.append(store.expired())
        clock.now += 10

    assert (sum(expired), expired[-1]) == (500, 0)
    assert store.totals().bytes == 1


def test_more_sessions_than_the_limit_are_refused(places: Places) -> None:
    """The refusal has the time after which a retry is useful; open sessions continue."""
    clock = Clock()
    store = places()(Limits(2, 1_000_000, 900.0), clock)
    begin(store, "a")
    clock.now += 100
    begin(store, "b")
    clock.now += 50

    assert store.write([RecordUpdate("c", b"c", None)]) == [LimitExceeded("2 sessions", 750.0)]
    assert store.write([RecordUpdate("a", b"a", revision(store, "a"))]) == [Written()]
    assert store.write([RecordUpdate("c", b"c", None)]) == [LimitExceeded("2 sessions", 850.0)]
    assert store.read(["c"]) == [None]
    assert store.totals().sessions == 2


def test_there_is_room_again_after_an_end_and_after_an_expiry(places: Places) -> None:
    """The space is free at once, before any record is removed."""
    clock = Clock()
    store = places()(Limits(2, 1_000_000, 900.0), clock)
    begin(store, "a", "b")
    store.write([RecordUpdate("a", b"the end", revision(store, "a"), ended=True)])
    begin(store, "c")
    assert store.write([RecordUpdate("d", b"d", None)]) == [LimitExceeded("2 sessions", 900.0)]
    clock.now += 901

    begin(store, "d", "e")
    assert store.expired() == 2


def test_the_limit_holds_within_one_call(places: Places) -> None:
    """The changes of a call are made in order."""
    store = places()(Limits(2, 1_000_000, 900.0), Clock())

    outcomes = store.write([RecordUpdate(name, b"", None) for name in "abc"])

    assert outcomes == [Written(), Written(), LimitExceeded("2 sessions", 900.0)]


def test_a_session_of_one_request_is_never_open(places: Places) -> None:
    """It needs no space among the open sessions."""
    store = places()(Limits(1, 1_000_000, 900.0), Clock())
    begin(store, "a")

    begin(store, "b", "c", ended=True)

    assert store.totals().sessions == 1


def test_more_bytes_than_the_limit_are_refused_to_new_sessions(places: Places) -> None:
    """An open session continues at any size."""
    clock = Clock()
    store = places()(Limits(1000, 100, 900.0), clock)
    begin(store, "a", record=bytes(50))
    clock.now += 1

    assert store.write([RecordUpdate("b", bytes(51), None)]) == [LimitExceeded("100 bytes", 899.0)]
    begin(store, "b", record=bytes(50))
    assert store.write([RecordUpdate("c", b"", None), RecordUpdate("d", b"d", None)]) == [
        Written(),
        LimitExceeded("100 bytes", 899.0),
    ]
    assert store.write([RecordUpdate("a", bytes(500), revision(store, "a"))]) == [Written()]
    assert store.totals().bytes == 550


def test_the_bytes_of_expired_records_are_free_space(places: Places) -> None:
    """The space is free as soon as a session needs it."""
    clock = Clock()
    store = places()(Limits(1000, 100, 900.0), clock)
    begin(store, "a", record=bytes(60))
    begin(store, "b", record=bytes(40), ended=True)
    clock.now += 61
    begin(store, "c", record=bytes(40))
    clock.now += 900

    begin(store, "d", record=bytes(60))
    assert store.totals().bytes == 100


def test_a_limit_of_zero_refuses_every_session(places: Places) -> None:
    """The refusal still has a time to retry."""
    assert places()(Limits(0, 100, 900.0), Clock()).write([RecordUpdate("a", b"", None)]) == [
        LimitExceeded("0 sessions", 900.0)
    ]
    assert places()(Limits(1, 0, 900.0), Clock()).write([RecordUpdate("a", b"a", None)]) == [
        LimitExceeded("0 bytes", 900.0)
    ]


def test_a_clock_that_was_set_back_loses_no_session(places: Places) -> None:
    """A record with a later time stamp than now counts as new."""
    clock = Clock()
    store = places()(WIDE, clock)
    begin(store, "a")
    clock.now -= 5000

    assert records(store.read(["a"])) == [b"record"]
    assert store.totals() == StoreTotals(1, 6, 0.0)
    store.write([RecordUpdate("a", b"next", revision(store, "a"))])
    clock.now += 901
    assert store.read(["a"]) == [None]


def test_simultaneous_writers_lose_no_increment(places: Places) -> None:
    """All increments of a shared number are kept."""
    place = places()
    begin(place(WIDE, Clock()), "a", record=b"0")

    def increment_often(store: Store) -> None:
        for _ in range(25):
            while True:
                (found,) = store.read(["a"])
                assert found is not None
                if store.write([RecordUpdate("a", b"%d" % (int(found.record) + 1), found.revision)]) == [Written()]:
                    break

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(increment_often, [place(WIDE, Clock()) for _ in range(4)]))

    assert records(place(WIDE, Clock()).read(["a"])) == [b"100"]


NAMES = ("a", "b", "c", "d")
writes = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.integers(0, 60),
        st.sampled_from(("new", "read", "read", "read", "stale")),
        st.sampled_from((False, False, True)),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda write: write[0],
)
passing = st.sampled_from((0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 30.0))


@settings(max_examples=60)
@given(limits=st.builds(Limits, st.integers(0, 3), st.integers(0, 150), st.just(4.0), st.just(2.0)), data=st.data())
def test_a_store_does_what_was_promised(places: Places, limits: Limits, data: st.DataObject) -> None:
    """Two store objects, with any order of calls, behave like a store in memory."""
    clock = Clock()
    place = places()
    stores = [place(limits, clock), place(limits, clock)]
    promised = MemoryStore(limits, clock)
    read: dict[str, list[tuple[int | None, int | None]]] = {name: [(None, None)] for name in NAMES}
    expired = promised_expired = 0
    for _ in range(data.draw(st.integers(1, 12))):
        clock.now += data.draw(passing)
        store = data.draw(st.sampled_from(stores))
        found, as_promised = store.read(NAMES), promised.read(NAMES)
        assert records(found) == records(as_promised)
        for name, one, other in zip(NAMES, found, as_promised, strict=True):
            read[name].append((one and one.revision, other and other.revision))
        ours: list[RecordUpdate] = []
        theirs: list[RecordUpdate] = []
        for name, size, basis, ended in data.draw(writes):
            bases = (None, None) if basis == "new" else read[name][-1 if basis == "read" else 0]
            bases = read[name][-2] if basis == "stale" else bases
            record = name.encode() * size
            ours.append(RecordUpdate(name, record, bases[0], ended))
            theirs.append(RecordUpdate(name, record, bases[1], ended))
        assert store.write(ours) == promised.write(theirs)
        totals, as_totals = store.totals(), promised.totals()
        assert (totals.sessions, totals.oldest_seconds) == (as_totals.sessions, as_totals.oldest_seconds)
        assert totals.bytes >= as_totals.bytes
        expired += store.expired()
        promised_expired += promised.expired()
        assert expired <= promised_expired
    clock.now += 1000
    stores[0].write([RecordUpdate("z", b"", None)])
    promised.write([RecordUpdate("z", b"", None)])

    assert stores[0].totals() == stores[1].totals() == promised.totals()
    assert expired + stores[0].expired() == promised_expired + promised.expired()
