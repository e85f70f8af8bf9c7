"""The promises of every store, tried on each of them."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_store import Clock, MemoryStore
from store_calls import WIDE, answered, begin, records, revision, stored

from torchserve_neuron_lstm.sessions.settings import Limits
from torchserve_neuron_lstm.sessions.store import Conflict, RecordUpdate, Store, StoreTotals, Written

from .conftest import Place, Places


def test_a_store_begins_empty(store: Store) -> None:
    assert store.read([]) == []
    assert store.read(["a", "b"]) == [None, None]
    assert store.write([]) == []
    assert store.totals() == StoreTotals(0, 0, None)
    assert store.expired() == 0


def test_what_is_written_is_read_in_the_order_asked_for(place: Place) -> None:
    first, second = place(WIDE, Clock()), place(WIDE, Clock())
    every_byte = bytes(range(256)) * 40
    first.write([RecordUpdate("a", every_byte, None), RecordUpdate("b", b"", None)])

    assert records(second.read(["b", "c", "a", "b"])) == [b"", None, every_byte, b""]


@pytest.mark.parametrize("model", ["a/b", "../up", "..", "%2F", "{x}", "naïve 型", "a*?[b]", "-wal", "x" * 60])
def test_a_model_of_any_name_sees_its_own_sessions_only(place: Place, model: str) -> None:
    tagger, other = place(WIDE, Clock(), "tagger"), place(WIDE, Clock(), model)
    begin(tagger, "a", record=b"of the tagger")

    assert other.read(["a"]) == [None]
    assert other.totals() == StoreTotals(0, 0, None)
    begin(other, "a", record=b"of the other")
    assert records(tagger.read(["a"])) == [b"of the tagger"]
    assert records(place(WIDE, Clock(), model).read(["a"])) == [b"of the other"]


def test_only_a_reader_of_the_last_record_can_write_the_next(place: Place) -> None:
    first, second = place(WIDE, Clock()), place(WIDE, Clock())
    begin(first, "a", record=b"0")
    seen = revision(first, "a")

    assert second.write([RecordUpdate("a", b"1", seen)]) == [Written()]
    assert first.write([RecordUpdate("a", b"2", seen)]) == [Conflict()]
    assert records(first.read(["a"])) == [b"1"]


def test_each_change_stands_alone(store: Store) -> None:
    begin(store, "a", "b")
    stale = revision(store, "a")
    store.write([RecordUpdate("a", b"newer", stale)])

    changes = [RecordUpdate("a", b"x", stale), RecordUpdate("b", b"next", revision(store, "b"))]
    outcomes = store.write([*changes, RecordUpdate("c", b"c", None)])

    assert outcomes == [Conflict(), Written(), Written()]
    assert records(store.read(["a", "b", "c"])) == [b"newer", b"next", b"c"]


def test_a_session_begins_where_none_is_open(store: Store) -> None:
    begin(store, "a")
    assert store.write([RecordUpdate("a", b"again", None)]) == [Conflict()]
    assert store.write([RecordUpdate("a", b"the end", revision(store, "a"), ended=True)]) == [Written()]

    begin(store, "a", record=b"anew")

    assert records(store.read(["a"])) == [b"anew"]
    assert store.totals() == StoreTotals(1, 4, 0.0)


def test_nothing_is_written_in_the_place_of_a_record_that_is_gone(store: Store, clock: Clock) -> None:
    begin(store, "a")
    seen = revision(store, "a")
    clock.now += 901

    assert store.write([RecordUpdate("a", b"late", seen), RecordUpdate("b", b"never was", seen)]) == [
        Conflict(),
        Conflict(),
    ]
    assert store.read(["a", "b"]) == [None, None]


def test_a_revision_never_comes_again(store: Store) -> None:
    """Otherwise a writer that paused during an end would overwrite another session."""
    seen = set()
    for _ in range(20):
        begin(store, "a")
        seen.add(revision(store, "a"))
        store.write([RecordUpdate("a", b"the end", revision(store, "a"), ended=True)])
        seen.add(revision(store, "a"))

    assert len(seen) == 40


def test_a_session_expires_when_it_was_idle_for_too_long(store: Store, clock: Clock) -> None:
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


def test_an_ended_session_is_kept_so_that_its_last_request_can_be_repeated(store: Store, clock: Clock) -> None:
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


def test_expired_records_are_removed_and_counted_once(place: Place, clock: Clock) -> None:
    first, second = place(WIDE, clock), place(WIDE, clock)
    begin(first, *(f"{number}" for number in range(30)))
    clock.now += 1000
    begin(first, "new")
    begin(second, "newer")

    assert first.expired() + second.expired() == 30
    assert first.expired() + second.expired() == 0
    assert first.totals() == second.totals() == StoreTotals(2, 12, 0.0)


def test_many_expired_sessions_are_removed_in_the_course_of_some_writes(store: Store, clock: Clock) -> None:
    begin(store, *(f"{number}" for number in range(500)))
    clock.now += 1000
    expired = []
    for _ in range(4):
        store.write([RecordUpdate("a", b"a", stored(store, "a") and revision(store, "a"))])
        assert store.totals().sessions == 1
        expired.append(store.expired())
        clock.now += 10

    assert (sum(expired), expired[-1]) == (500, 0)
    assert store.totals().bytes == 1


def test_a_clock_that_was_set_back_loses_no_session(store: Store, clock: Clock) -> None:
    """A record with a later time stamp than now counts as new."""
    begin(store, "a")
    clock.now -= 5000

    assert records(store.read(["a"])) == [b"record"]
    assert store.totals() == StoreTotals(1, 6, 0.0)
    store.write([RecordUpdate("a", b"next", revision(store, "a"))])
    clock.now += 901
    assert store.read(["a"]) == [None]


def test_simultaneous_writers_lose_no_increment(place: Place) -> None:
    begin(place(WIDE, Clock()), "a", record=b"0")

    def increment_often(store: Store) -> None:
        for _ in range(25):
            while True:
                found = stored(store, "a")
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
        st.sampled_from(("open", "unconfirmed", "one", "other", "ended")),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda write: write[0],
)
passing = st.sampled_from((0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 30.0))


@settings(max_examples=60)
@given(
    limits=st.builds(
        Limits, st.integers(0, 3), st.integers(0, 150), st.just(4.0), st.just(2.0), st.just(3.0), st.none() | st.just(1)
    ),
    data=st.data(),
)
def test_a_store_does_what_was_promised(limited_places: Places, limits: Limits, data: st.DataObject) -> None:
    clock = Clock()
    place = limited_places()
    stores = [place(limits, clock), place(limits, clock)]
    promised = MemoryStore(limits, clock)
    for either in stores:
        either.write([RecordUpdate("past", b"", None, ended=True)])  # time passes for those who have written before
    read: dict[str, list[tuple[int | None, int | None]]] = {name: [(None, None)] for name in NAMES}
    expired = promised_expired = 0
    for _ in range(data.draw(st.integers(1, 12))):
        clock.now += data.draw(passing)
        store = data.draw(st.sampled_from(stores))
        found, as_promised = answered(store.read(NAMES)), promised.read(NAMES)
        assert records(found) == records(as_promised)
        for name, one, other in zip(NAMES, found, as_promised, strict=True):
            read[name].append((one and one.revision, other and other.revision))
        ours: list[RecordUpdate] = []
        theirs: list[RecordUpdate] = []
        for name, size, basis, kind in data.draw(writes):
            bases = (None, None) if basis == "new" else read[name][-1 if basis == "read" else 0]
            bases = read[name][-2] if basis == "stale" else bases
            record = name.encode() * size
            starts = found[NAMES.index(name)] is None  # only a start has a client, or is unconfirmed
            facts: dict[str, Any] = {
                "ended": kind == "ended",
                "unconfirmed": starts and kind == "unconfirmed",
                "client": kind if starts and kind in ("one", "other") else None,
            }
            ours.append(RecordUpdate(name, record, bases[0], **facts))
            theirs.append(RecordUpdate(name, record, bases[1], **facts))
        assert store.write(ours) == promised.write(theirs)
        totals, as_totals = store.totals(), promised.totals()
        assert (totals.sessions, totals.oldest_seconds) == (as_totals.sessions, as_totals.oldest_seconds)
        assert as_totals.bytes <= totals.bytes <= limits.bytes
        expired += store.expired()
        promised_expired += promised.expired()
        assert expired <= promised_expired
    clock.now += 1000
    stores[0].write([RecordUpdate("z", b"", None)])
    promised.write([RecordUpdate("z", b"", None)])

    assert stores[0].totals() == stores[1].totals() == promised.totals()
    assert expired + stores[0].expired() == promised_expired + promised.expired()
