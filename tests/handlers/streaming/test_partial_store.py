"""A store on several servers, one of which cannot be used: only its sessions are refused."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from memory_store import MemoryStore
from session_service import ask, make_service, make_store, piece

from torchserve_neuron_lstm.handlers.streaming.store_sessions import StoreSessions
from torchserve_neuron_lstm.sessions import store as interface
from torchserve_neuron_lstm.sessions.store import RecordUpdate, StoreUnavailableError, WriteOutcome


@dataclass
class PartialStore:
    """A store in memory that cannot read, or not write, the sessions whose ids begin with a letter."""

    model = "model"
    memory: MemoryStore = field(default_factory=make_store)
    unreadable: str | None = None
    unwritable: str | None = None
    error: StoreUnavailableError = field(default_factory=lambda: StoreUnavailableError("the shard at port 7 is gone"))
    waits: int = 0
    """Calls that ended in the error: with a server that hangs, each takes as long as its timeout."""

    def read(
        self, ids: Sequence[str], known: Mapping[str, int] | None = None
    ) -> list[interface.StoredRecord | StoreUnavailableError | None]:
        self.waits += any(one[0] == self.unreadable for one in ids)
        return [self.error if one[0] == self.unreadable else self.memory.read([one], known)[0] for one in ids]

    def write(self, changes: Sequence[RecordUpdate]) -> list[WriteOutcome | StoreUnavailableError]:
        self.waits += any(one.id[0] == self.unwritable for one in changes)
        return [self.error if one.id[0] == self.unwritable else self.memory.write([one])[0] for one in changes]

    def totals(self) -> interface.StoreTotals:
        return self.memory.totals()

    def expired(self) -> int:
        return self.memory.expired()

    def close(self) -> None:
        """Do nothing: there is no connection."""


@pytest.mark.parametrize("broken", ["unreadable", "unwritable"])
def test_only_the_sessions_of_a_server_that_is_gone_are_refused(broken: str, caplog: pytest.LogCaptureFixture) -> None:
    store = PartialStore()
    service = make_service(StoreSessions(store))
    ask(service, *(piece([1], id=name, start="true") for name in ("a1", "a2", "b1")))
    batch = [piece([2], id=name, step="1") for name in ("a1", "b1", "a2")]
    setattr(store, broken, "a")

    with caplog.at_level(logging.ERROR):
        refused = ask(service, *batch)

    assert [status for status, _ in refused] == [503, 200, 503]
    assert {body["type"] for status, body in refused if status == 503} == {"StoreUnavailable"}
    assert "port 7" not in str(refused)
    assert caplog.messages == ["the shard at port 7 is gone"]
    setattr(store, broken, None)
    assert [(status, body["total"]) for status, body in ask(service, *batch)] == [(200, 3)] * 3


def test_a_server_without_space_refuses_its_own_sessions() -> None:
    service = make_service(StoreSessions(PartialStore(unwritable="a", error=interface.StoreFullError("no memory"))))

    answers = ask(service, *(piece([1], id=name, start="true") for name in ("a1", "b1")))

    assert [status for status, _ in answers] == [507, 200]


def test_a_model_is_ready_while_one_server_takes_writes() -> None:
    """A store that tells errors for some sessions raises one only if nothing can be written."""
    assert StoreSessions(PartialStore(unwritable="a", unreadable="a")).available()


@pytest.mark.parametrize("broken", ["unreadable", "unwritable"])
def test_a_batch_waits_once_for_a_server_that_hangs(broken: str) -> None:
    store = PartialStore()
    service = make_service(StoreSessions(store))
    ask(service, *(piece([1], id=name, start="true") for name in ("a1", "b1")))
    setattr(store, broken, "a")

    answers = ask(
        service,
        *(piece([number], id="a1", step="1") for number in range(2, 8)),
        *(piece([2], id="b1", step=step) for step in ("1", "2", "3")),
    )

    assert [(status, body.get("type")) for status, body in answers[:6]] == [(503, "StoreUnavailable")] * 6
    assert [status for status, _ in answers[6:]] == [200] * 3
    assert store.waits == 1


def test_whole_sessions_before_it_do_not_let_a_session_wait_for_the_server_again() -> None:
    store = PartialStore(unreadable="a")
    service = make_service(StoreSessions(store))
    whole = {"start": "true", "end": "true"}

    answers = ask(
        service,
        *(piece([1], id=f"a{number}", **whole) for number in range(4) for _ in range(number)),
        *(piece([1], id=f"a{number}", step="1") for number in range(4)),
        piece([1], id="b", **whole),
    )

    assert [status for status, _ in answers] == [200] * 6 + [503] * 4 + [200]
    assert store.waits == 1
