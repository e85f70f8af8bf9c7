"""A store's time: no clock that jumps, once or for good, ends a session."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from memory_store import Clock
from store_calls import WIDE, begin, records, revision, stored

from torchserve_neuron_lstm.sessions.sqlite.store import SqliteStore
from torchserve_neuron_lstm.sessions.store import RecordUpdate, Store, StoreTotals, Written
from torchserve_neuron_lstm.sessions.store_time import JITTER_SECONDS, LocalTime, Reading, StoredTime, current_time

from .conftest import Place, Places

seconds = st.floats(0, 1e4, allow_nan=False)
errors = st.floats(-1e9, 1e9, allow_nan=False)


def _after(before: LocalTime | None, stored: StoredTime, reading: float, writes: bool) -> LocalTime | None:
    return LocalTime(stored.local_estimate, reading) if writes else before and before.synchronized(stored, reading)


@pytest.mark.parametrize("wrong", ["shared", "local"])
@given(st.lists(st.tuples(st.integers(0, 3), seconds, errors, st.booleans()), max_size=30), st.booleans())
def test_time_never_passes_faster_than_a_true_clock_whatever_the_other_one_says(
    wrong: str, looks: list[tuple[int, float, float, bool]], from_the_start: bool
) -> None:
    """Four users look now and then, and some write. One of the two clocks is wrong by any amount.

    If all users are there from the start, no more time passes after any write, at which a session is used, either.
    """
    began, true, stored = 5e8, 1e6, StoredTime(5e8, 1e6)
    ahead = began - true
    local: dict[int, LocalTime | None] = dict.fromkeys(range(4), LocalTime(began, true) if from_the_start else None)
    for user, passed, error, writes in looks:
        true += passed
        reading = Reading(true + (error if wrong == "shared" else 0.0), true + (error if wrong == "local" else 0.0))
        now = current_time(stored, local[user], reading)
        assert stored.time <= now.time <= began + (true - 1e6) + 1e-3
        assert not from_the_start or now.time - true <= ahead + JITTER_SECONDS + 1e-3
        local[user] = _after(local[user], now if writes else stored, reading.local, writes)
        if writes:
            stored, ahead = now, now.time - true


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10_000), st.booleans()), max_size=30))
def test_time_passes_as_it_does_where_both_clocks_are_right(looks: list[tuple[int, int, bool]]) -> None:
    true, stored = 0, StoredTime(1000.0, 0.0)
    local: dict[int, LocalTime | None] = {
        user: LocalTime(1000.0, user * 1e6)  # local clocks need not agree
        for user in range(4)
    }
    for user, passed, writes in looks:
        true += passed
        reading = Reading(float(true), true + user * 1e6)
        now = current_time(stored, local[user], reading)
        assert now.time == 1000.0 + true
        local[user] = _after(local[user], now if writes else stored, reading.local, writes)
        stored = now if writes else stored


@pytest.mark.parametrize("error", ["shared_error", "local_error"])
@pytest.mark.parametrize("for_good", [False, True])
@pytest.mark.parametrize("seconds_ahead", [601.0, 1e7, -1e7])
def test_a_clock_that_jumps_ends_no_session(
    place: Place, clock: Clock, error: str, for_good: bool, seconds_ahead: float
) -> None:
    store, other = place(WIDE, clock), place(WIDE, clock)
    begin(store, "a")
    other.read(["a"])
    clock.now += 600

    setattr(clock, error, seconds_ahead)
    begin(store, "b")
    store.write([RecordUpdate("b", b"next", revision(store, "b"))])
    if not for_good:
        setattr(clock, error, 0.0)
    for user, name in ((store, "c"), (other, "d")):
        begin(user, name)
        assert records(user.read(["a", "b"])) == [b"record", b"next"]
    assert store.totals().sessions == 4
    clock.now += 200
    assert records(store.read(["a", "b"])) == [b"record", b"next"]
    clock.now += 1100
    begin(store, "e")
    assert records(store.read(["a", "b"])) == [None, None]


class _Ahead:
    """Clocks of a worker that are both ahead of those of others, for good."""

    def __init__(self, clock: Clock, by: float) -> None:
        self._clock = clock
        self._by = by

    def __call__(self) -> Reading:
        return replace(self._clock, shared_error=self._by, local_error=self._by)()


@pytest.mark.parametrize("by", [601.0, 1e8, -1e8])
def test_a_worker_whose_clocks_are_wrong_ends_no_session_of_others(tmp_path: Path, by: float) -> None:
    clock = Clock()
    right = SqliteStore(tmp_path, "tagger", WIDE, clock)
    wrong = SqliteStore(tmp_path, "tagger", WIDE, _Ahead(clock, by))
    begin(right, "a")
    for number in range(88):
        clock.now += 10
        begin(wrong, f"{number}")
        begin(right, f"right {number}")
        assert records(right.read(["a"])) == records(wrong.read(["a"])) == [b"record"]
    for number in range(93):
        clock.now += 10
        for user in (right, wrong) if number % 2 == 0 else (wrong, right):
            begin(user, f"more {clock.now} {user is right}")
    assert right.read(["a"]) == wrong.read(["a"]) == [None]


@pytest.mark.few(3)
def test_time_passes_however_often_users_write(place: Place, clock: Clock) -> None:
    limits = replace(WIDE, idle_seconds=0.5)
    stores = [place(limits, clock), place(limits, clock)]
    begin(stores[0], "a")
    begin(stores[1], "b")
    for number in range(2000):
        clock.now += 0.0003
        stores[number % 2].write([RecordUpdate("b", b"", revision(stores[number % 2], "b"))])
    assert records(stores[0].read(["a", "b"])) == [None, b""]


def test_a_worker_that_begins_ends_no_session(place: Place, clock: Clock) -> None:
    first = place(WIDE, clock)
    begin(first, "a")
    if type(first).__name__ == "MemoryStore":  # it has one user, who is always there
        return
    clock.now += 3600
    fresh = place(WIDE, clock)
    assert records(fresh.read(["a"])) == [b"record"]
    assert fresh.totals() == StoreTotals(0, 6, None)  # a report has the time since the last write

    begin(fresh, "b")
    clock.now += 1
    assert records(first.read(["a", "b"])) == [b"record", b"record"]
    clock.now += 900
    assert records(first.read(["a", "b"])) == records(fresh.read(["a", "b"])) == [None, None]


@dataclass
class _Late(Clock):
    """Clocks of workers whose calls reach the server after their own reading: up to 50 ms, each time another time."""

    random: Random = field(default_factory=lambda: Random(0))

    def __call__(self) -> Reading:
        self.local_error = -self.random.uniform(0, 0.05)
        return super().__call__()


def test_time_passes_though_calls_take_longer_or_shorter(place: Place) -> None:
    """Less than one second is lost of ten, in a thousand writes."""
    clock = _Late()
    limits = replace(WIDE, idle_seconds=9.0)
    stores = [place(limits, clock) for _ in range(3)]
    for number, store in enumerate(stores):
        begin(store, f"first {number}")
    begin(stores[0], "a")
    for number in range(1000):
        clock.now += 0.01
        begin(stores[number % 3], f"{number}")
    assert records(stores[0].read(["a", "999"])) == [None, b"record"]


class _Used:
    """A session that its client uses now and then."""

    def __init__(self, store: Store, clock: Clock) -> None:
        begin(store, "theirs")
        self._clock = clock
        self._last = clock.now

    def use(self, store: Store) -> None:
        """Continue the session if its time is not over."""
        found = stored(store, "theirs")
        if self._clock.now - self._last > WIDE.idle_seconds - JITTER_SECONDS:
            return
        assert found is not None
        assert store.write([RecordUpdate("theirs", b"next", found.revision)]) == [Written()]
        self._last = self._clock.now


_SET_BACK_AND_FORWARD: list[tuple[str, float]] = [
    ("pass", 30.0),
    ("jump", -601.0),
    ("use", 0),
    ("pass", 899.0),
    ("jump", 601.0),
]


@pytest.mark.few(1)
@settings(max_examples=60)
@example([("pass", 0.5), *_SET_BACK_AND_FORWARD], "shared_error")
@example([*_SET_BACK_AND_FORWARD, ("pass", 0.5)], "shared_error")
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("pass"), st.sampled_from((0.5, 30.0, 299.0, 899.0))),
            st.tuples(st.just("jump"), st.sampled_from((601.0, 1e6, -601.0, 0.0))),
            st.tuples(st.just("start"), st.integers(1, 30)),
            st.tuples(st.just("use"), st.just(0)),
        ),
        max_size=15,
    ),
    st.sampled_from(("shared_error", "local_error")),
)
def test_nobody_ends_a_session_of_another(limited_places: Places, events: list[tuple[str, float]], error: str) -> None:
    """One client starts sessions without an id as it likes, and a clock jumps: who comes in time goes on."""
    clock, place = Clock(), limited_places()
    limits = replace(WIDE, sessions=16)
    stores = [place(limits, clock), place(limits, clock)]
    theirs = _Used(stores[0], clock)
    stores[1].write([RecordUpdate("other", b"", None, ended=True)])
    names = iter(range(10_000))
    actions: dict[str, Callable[[float, Store], object]] = {
        "pass": lambda by, _: setattr(clock, "now", clock.now + by),
        "jump": lambda by, _: setattr(clock, error, by),
        "start": lambda count, store: store.write(
            [RecordUpdate(f"{next(names)}", b"", None, unconfirmed=True) for _ in range(int(count))]
        ),
        "use": lambda _, store: theirs.use(store),
    }
    for number, (kind, amount) in enumerate(events):
        actions[kind](amount, stores[number % 2])
    theirs.use(stores[0])
    assert stores[1].write([RecordUpdate("named", b"", None)]) == [Written()]
