import json
from dataclasses import replace

from fake_streaming_model import SETTINGS
from memory_store import Clock, MemoryStore
from session_service import END, ID, START, ask, make_service, make_store, piece

from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest
from torchserve_neuron_lstm.handlers.streaming.store_sessions import StoreSessions


def test_a_full_store_refuses_new_sessions_and_serves_the_open_ones() -> None:
    service = make_service(StoreSessions(make_store(sessions=1)))
    ask(service, piece([1], id="a", start="true"))

    full, open_ = service.handle([piece([1], id="b", start="true"), piece([2], id="a")])

    assert (full.status, dict(full.headers)) == (429, {"Retry-After": "600"})
    assert open_.status == 200


def test_a_session_that_would_store_too_much_is_refused_and_goes_on_later() -> None:
    store = make_store(sessions=2, bytes=600)
    service = make_service(StoreSessions(store))
    ask(service, piece([1], id="a", start="true"), piece([1], id="b", start="true"))

    long, new = service.handle([piece([1] * 60, id="a", step="1"), piece([1], id="c", start="true")])

    assert (long.status, json.loads(long.body)["type"], new.status) == (507, "StoreFull", 429)
    assert int(long.headers["Retry-After"]) >= 1
    assert sum(len(entry.record) for entry in store.entries.values()) <= 600
    ask(service, RawRequest({}, {ID: "b", END: "true"}))
    assert ask(service, piece([2], id="a", step="1"))[0][1]["total"] == 3


def test_a_session_is_unconfirmed_until_its_id_comes_back() -> None:
    store = make_store(sessions=16)
    service = make_service(StoreSessions(store))
    ask(service, piece([1] * 60, id="own", start="true"))
    answers = ask(service, *[piece([1] * 60) for _ in range(20)])

    assert [status for status, _ in answers] == [200] * 14 + [429] * 6
    assert len(store.entries[answers[0][1][ID]].record) < len(store.entries["own"].record) - 300
    assert ask(service, piece([1], id="another", start="true"))[0][0] == 200
    assert ask(service, piece([2], id=answers[0][1][ID], step="60"))[0][1]["total"] == 62
    store.clock.now += 61
    assert [ask(service, piece([2], id=answers[n][1][ID]))[0][0] for n in (0, 1)] == [200, 410]
    assert ask(service, piece([2], id="own", step="60"))[0][1]["total"] == 62


def test_a_client_that_a_proxy_names_has_a_limit_of_its_own() -> None:
    settings = replace(SETTINGS, client_header="X-Client", client_sessions=1)
    service = make_service(StoreSessions(MemoryStore(settings.limits, Clock())), manifest={"streaming": settings})

    def starts(name: str, **headers: str) -> int:
        return ask(service, RawRequest({"body": {"ids": [1], ID: name, START: True}}, headers))[0][0]

    assert [starts("a", **{"x-client": "one"}), starts("b", **{"X-CLIENT": "one"})] == [200, 429]
    assert [starts("c", **{"x-client": "two"}), starts("d"), starts("e")] == [200, 200, 429]
    assert ask(service, piece([2], id="a"))[0][1]["total"] == 3
