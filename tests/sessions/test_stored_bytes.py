"""The bytes of a store: never more than its limit, and a file that gives back what it no longer needs."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from memory_store import Clock

from torchserve_neuron_lstm.sessions.settings import Limits
from torchserve_neuron_lstm.sessions.sqlite_store import SqliteStore
from torchserve_neuron_lstm.sessions.store import Conflict, LimitExceeded, RecordUpdate, Store, Written

from .conftest import Places

NAMES = st.sampled_from([f"{number}" for number in range(12)])
SIZES = st.integers(0, 1200) | st.sampled_from((25, 26, 750, 1000))
LIMITS = Limits(sessions=10, bytes=1000, idle_seconds=100.0, retry_seconds=20.0, confirm_seconds=30.0)


class Bytes(RuleBasedStateMachine):
    """Two workers and any sequence of starts, requests and ends of any size."""

    places: Places

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        place = type(self).places()
        self.stores = [place(LIMITS, self.clock), place(LIMITS, self.clock)]
        self.open: dict[str, int] = {}

    def _store(self, number: int) -> Store:
        return self.stores[number % 2]

    @rule(name=NAMES, size=SIZES, worker=st.integers(0, 1), unconfirmed=st.booleans())
    def start(self, name: str, size: int, worker: int, unconfirmed: bool) -> None:
        """Start a session."""
        change = RecordUpdate(name, bytes(size), None, unconfirmed=unconfirmed)
        (outcome,) = self._store(worker).write([change])
        assert isinstance(outcome, Written | LimitExceeded | Conflict)

    @rule(name=NAMES, size=SIZES, worker=st.integers(0, 1), ended=st.booleans())
    def continue_(self, name: str, size: int, worker: int, ended: bool) -> None:
        """Continue a session or end it: what is small, or no larger than before, is always taken."""
        store = self._store(worker)
        (found,) = store.read([name])
        if found is None:
            return
        (outcome,) = store.write([RecordUpdate(name, bytes(size), found.revision, ended)])
        if size <= max(LIMITS.own_bytes, len(found.record)) and outcome != Written():
            assert isinstance(outcome, LimitExceeded)
            self.was_refused(name, found.record, store)

    def was_refused(self, name: str, record: bytes, store: Store) -> None:
        """A session that has ended starts again: for that there need not be room."""
        assert store.write([RecordUpdate(name, b"", None)]) != [Conflict()], (name, record)

    @rule(seconds=st.sampled_from((1.0, 15.0, 60.0)))
    @precondition(lambda self: True)
    def pass_(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.now += seconds

    @invariant()
    def within_the_limit(self) -> None:
        """The records take no more than the limit."""
        assert all(store.totals().bytes <= LIMITS.bytes for store in self.stores)


@pytest.mark.timeout(300)
def test_records_never_take_more_than_the_limit(places: Places) -> None:
    """This holds after any sequence of starts, requests and ends; a small request is never refused."""
    machine = type("Machine", (Bytes,), {"places": staticmethod(places)})
    run_state_machine_as_test(machine, settings=settings(max_examples=25, stateful_step_count=30, deadline=None))


def test_the_file_shrinks_when_sessions_have_gone(tmp_path: Path) -> None:
    """A part of it at a time, with writes that come anyway; it stays small enough to be read at once."""
    clock = Clock()
    limits = Limits(10_000, 200_000_000, 100.0)
    with closing(SqliteStore(tmp_path, "tagger", limits, clock)) as store:
        for batch in range(20):
            store.write([RecordUpdate(f"{batch} {number}", bytes(20_000), None) for number in range(50)])
        store.close()
        full = store.file.stat().st_size
        assert full > 20_000_000
        store.write([RecordUpdate("kept", b"record", None)])
        for _ in range(40):
            clock.now += 60
            (found,) = store.read(["kept"])
            store.write([RecordUpdate("kept", b"record", found and found.revision)])
        assert store.totals().bytes == 6
        store.close()
        assert store.file.stat().st_size < full / 10
