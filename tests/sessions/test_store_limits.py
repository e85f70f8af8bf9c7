"""The limits of every store, tried on each of them."""

from memory_store import Clock, MemoryStore
from store_calls import WIDE, begin, records, revision

from torchserve_neuron_lstm.sessions.settings import Limits
from torchserve_neuron_lstm.sessions.store import LimitExceeded, RecordUpdate, StoreTotals, Written

from .conftest import Place, Places


def test_more_sessions_than_the_limit_are_refused_but_those_of_one_request(limited_place: Place, clock: Clock) -> None:
    store = limited_place(Limits(2, 1_000_000, 900.0), clock)
    begin(store, "a")
    clock.now += 100
    begin(store, "b")
    clock.now += 50

    assert store.write([RecordUpdate("c", b"c", None)]) == [LimitExceeded("2 sessions", 750.0)]
    assert store.write([RecordUpdate("a", b"a", revision(store, "a"))]) == [Written()]
    assert store.write([RecordUpdate("c", b"c", None)]) == [LimitExceeded("2 sessions", 850.0)]
    assert store.read(["c"]) == [None]
    begin(store, "d", "e", ended=True)  # a session of one request is never open
    assert store.totals().sessions == 2


def test_the_limit_holds_within_one_call_until_there_is_room_after_an_end_and_after_an_expiry(
    limited_place: Place, clock: Clock
) -> None:
    store = limited_place(Limits(2, 1_000_000, 900.0), clock)
    outcomes = store.write([RecordUpdate(name, b"", None) for name in "abc"])
    assert outcomes == [Written(), Written(), LimitExceeded("2 sessions", 900.0)]
    store.write([RecordUpdate("a", b"the end", revision(store, "a"), ended=True)])
    begin(store, "c")
    assert store.write([RecordUpdate("d", b"d", None)]) == [LimitExceeded("2 sessions", 900.0)]
    clock.now += 901

    begin(store, "d", "e")
    assert store.expired() == 2


def test_more_bytes_than_the_limit_are_refused(limited_place: Place, clock: Clock) -> None:
    store = limited_place(Limits(1000, 100, 900.0), clock)
    begin(store, "a", record=bytes(50))
    clock.now += 1

    assert store.write([RecordUpdate("b", bytes(51), None)]) == [LimitExceeded("100 bytes", 899.0)]
    begin(store, "b", record=bytes(50))
    assert store.write([RecordUpdate("c", b"", None), RecordUpdate("d", b"d", None)]) == [
        Written(),
        LimitExceeded("100 bytes", 899.0),
    ]
    assert store.write([RecordUpdate("a", bytes(51), revision(store, "a"))]) == [LimitExceeded("100 bytes", 899.0)]
    assert records(store.read(["a"])) == [bytes(50)]
    assert store.write([RecordUpdate("a", bytes(49), revision(store, "a"))]) == [Written()]
    begin(store, "d", record=b"d")
    assert store.totals().bytes == 100


def test_a_small_record_of_an_open_session_is_always_taken(limited_place: Place) -> None:
    store = limited_place(Limits(10, 4000, 900.0), Clock())
    begin(store, *"abcdefghi", record=b"")
    begin(store, "greedy", record=bytes(3000))

    assert store.write([RecordUpdate("a", bytes(101), revision(store, "a"))]) == [LimitExceeded("3000 bytes", 900.0)]
    for name in "abcdefghi":
        assert store.write([RecordUpdate(name, bytes(100), revision(store, name))]) == [Written()]
    assert store.totals().bytes == 3900


def test_a_limit_that_was_lowered_lets_sessions_shrink_and_end(limited_place: Place, clock: Clock) -> None:
    before, store = limited_place(Limits(9, 1000, 900.0), clock), limited_place(Limits(9, 10, 900.0), clock)
    begin(before, "a", "b", record=bytes(300))
    if isinstance(before, MemoryStore):
        before.limits = Limits(9, 10, 900.0)

    assert store.write([RecordUpdate("a", bytes(301), revision(store, "a"))]) == [LimitExceeded("10 bytes", 900.0)]
    assert store.write([RecordUpdate("a", bytes(300), revision(store, "a"))]) == [Written()]
    assert store.write([RecordUpdate("b", bytes(9), revision(store, "b"), ended=True)]) == [Written()]
    assert store.totals().bytes == 309


def unconfirmed(name: str, record: bytes = b"record") -> RecordUpdate:
    """The start of a session without an id."""
    return RecordUpdate(name, record, None, unconfirmed=True)


def test_a_session_that_was_started_without_an_id_expires_soon_unless_it_is_continued(
    limited_place: Place, clock: Clock
) -> None:
    store = limited_place(WIDE, clock)
    assert store.write([unconfirmed("a"), unconfirmed("b")]) == [Written()] * 2
    clock.now += 60
    assert records(store.read(["a", "b"])) == [b"record"] * 2
    assert store.totals() == StoreTotals(2, 12, 60.0)
    store.write([RecordUpdate("b", b"second", revision(store, "b"))])
    clock.now += 1

    assert records(store.read(["a", "b"])) == [None, b"second"]
    assert store.totals().sessions == 1
    clock.now += 800
    begin(store, "c")
    assert records(store.read(["a", "b"])) == [None, b"second"]
    assert (store.expired(), store.totals().sessions) == (1, 2)


def test_sessions_without_an_id_leave_room_for_those_with_one(limited_place: Place, clock: Clock) -> None:
    """One client can start many; it is told to come back when the first of them expires."""
    store = limited_place(Limits(16, 1_000_000, 900.0), clock)
    begin(store, "a")
    clock.now += 5

    outcomes = store.write([unconfirmed(f"{number}") for number in range(20)])

    limit = "14 sessions that were started without an id and have had one request"
    assert outcomes == [Written()] * 14 + [LimitExceeded(limit, 60.0)] * 6
    begin(store, "b")
    assert store.write([RecordUpdate("c", b"", None)]) == [LimitExceeded("16 sessions", 60.0)]
    assert store.write([RecordUpdate("0", b"", revision(store, "0"))]) == [Written()]
    clock.now += 61
    begin(store, "c")
    assert store.expired() == 13


def test_a_client_that_the_host_names_has_a_limit_of_its_own(limited_place: Place, clock: Clock) -> None:
    store = limited_place(Limits(100, 1_000_000, 900.0, client_sessions=2), clock)

    def starts(name: str, client: str | None) -> object:
        return store.write([RecordUpdate(name, b"record", None, client=client)])[0]

    beyond = LimitExceeded("2 sessions of one client", 900.0)
    assert [starts(name, "one") for name in "abc"] == [Written(), Written(), beyond]
    assert [starts("d", "other"), starts("e", None)] == [Written()] * 2
    store.write([RecordUpdate("a", b"next", revision(store, "a"))])
    assert starts("c", "one") == beyond
    store.write([RecordUpdate("a", b"end", revision(store, "a"), ended=True)])
    assert [starts("c", "one"), starts("f", "one")] == [Written(), beyond]
    clock.now += 901
    assert [starts(name, "one") for name in "fgh"] == [Written(), Written(), beyond]
    assert store.totals().sessions == 2


def test_a_limit_of_zero_refuses_every_session(limited_places: Places) -> None:
    for limits, reached in ((Limits(0, 100, 900.0), "0 sessions"), (Limits(1, 0, 900.0), "0 bytes")):
        store = limited_places()(limits, Clock())
        assert store.write([RecordUpdate("a", b"a", None)]) == [LimitExceeded(reached, 900.0)]


def test_an_id_that_another_client_uses_again_is_no_longer_the_first_ones(limited_place: Place, clock: Clock) -> None:
    """The first session has expired or ended; what is left of it has not been removed yet."""
    store = limited_place(Limits(100, 1_000_000, 900.0, client_sessions=1), clock)
    for number, ended in enumerate((False, True)):
        name = f"{number}"
        assert store.write([RecordUpdate(name, b"", None, client="one")]) == [Written()]
        if ended:
            store.write([RecordUpdate(name, b"", revision(store, name), ended=True)])
        else:
            clock.now += 901
        assert store.write([RecordUpdate(name, b"", None)]) == [Written()]
        assert store.write([RecordUpdate(f"next {number}", b"", None, client="one")]) == [Written()]
        store.write([RecordUpdate(f"next {number}", b"", revision(store, f"next {number}"), ended=True)])
