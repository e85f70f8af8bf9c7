import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from memory_store import Clock
from store_calls import stored

from torchserve_neuron_lstm.sessions.settings import Limits
from torchserve_neuron_lstm.sessions.store import RecordUpdate, Store, Written

from .conftest import Places

NAMES = st.sampled_from([f"{number}" for number in range(5)])
SIZES = st.sampled_from((0, 0, 62, 62, 376, 752, 1000)) | st.integers(0, 1000)
LIMITS = Limits(sessions=4, bytes=1000, idle_seconds=100.0, retry_seconds=20.0, confirm_seconds=30.0)


class Bytes(RuleBasedStateMachine):
    """Two workers and any sequence of starts, requests and ends of any size."""

    places: Places

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        place = type(self).places()
        self.stores = [place(LIMITS, self.clock), place(LIMITS, self.clock)]
        self.ended: dict[str, bool] = {}

    def _store(self, number: int) -> Store:
        return self.stores[number % 2]

    @rule(name=NAMES, size=SIZES, worker=st.integers(0, 1), unconfirmed=st.booleans())
    def start(self, name: str, size: int, worker: int, unconfirmed: bool) -> None:
        """Start a session."""
        (outcome,) = self._store(worker).write([RecordUpdate(name, bytes(size), None, unconfirmed=unconfirmed)])
        if outcome == Written():
            self.ended[name] = False

    @rule(name=NAMES, size=SIZES, worker=st.integers(0, 1), ended=st.booleans())
    def continue_(self, name: str, size: int, worker: int, ended: bool) -> None:
        """Continue or end a session: what is small, or no larger than before, is always taken."""
        store = self._store(worker)
        found = stored(store, name)
        if found is None:
            return
        (outcome,) = store.write([RecordUpdate(name, bytes(size), found.revision, ended)])
        if not self.ended[name] and size <= max(LIMITS.own_bytes, len(found.record)):
            assert outcome == Written()
        if outcome == Written():
            self.ended[name] = ended

    @rule(seconds=st.sampled_from((1.0, 2.0, 60.0)))
    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.now += seconds

    @invariant()
    def within_the_limit(self) -> None:
        """The records take no more than the limit."""
        assert all(store.totals().bytes <= LIMITS.bytes for store in self.stores)


@pytest.mark.few(1)
@pytest.mark.timeout(300)
def test_records_never_take_more_than_the_limit(limited_places: Places) -> None:
    machine = type("Machine", (Bytes,), {"places": staticmethod(limited_places)})
    run_state_machine_as_test(machine, settings=settings(max_examples=50, stateful_step_count=40, deadline=None))
