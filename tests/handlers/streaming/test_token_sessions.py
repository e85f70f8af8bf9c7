from dataclasses import replace

from fake_streaming_model import SETTINGS, STATE
from session_service import END, ID, STEP, TOKEN, ask, make_service, piece

from torchserve_neuron_lstm.handlers.service import Service
from torchserve_neuron_lstm.handlers.streaming.token_sessions import TokenSessions

KEY = bytes(range(32))


def carried_service(*keys: bytes, state: str = STATE, name: str = "model", now: float = 0.0) -> Service:
    settings = replace(SETTINGS, store="client", state=state)
    sessions = TokenSessions(keys or (KEY,), bytes.fromhex(state), 4, name, settings.token_seconds, lambda: now)
    return make_service(sessions, manifest={"streaming": settings})


def test_a_client_can_carry_its_session() -> None:
    ((_, first),) = ask(carried_service(), piece([1, 2], start="true"))

    for _ in range(2):
        ((_, second),) = ask(carried_service(), piece({"ids": [3], TOKEN: first[TOKEN], ID: first[ID], STEP: 2}))
        assert (second["total"], second[STEP], second[ID]) == (6, 3, first[ID])
    ((_, last),) = ask(carried_service(), piece({"ids": [4], TOKEN: second[TOKEN], END: True}))
    assert (last["total"], TOKEN in last) == (10, False)


def test_a_token_that_is_not_ours_is_refused() -> None:
    ((_, first),) = ask(carried_service(), piece([1, 2], start="true"))
    token = first[TOKEN]
    changed = token[:-3] + ("A" if token[-3] != "A" else "B") + token[-2:]

    for service, sent in (
        (carried_service(), changed),
        (carried_service(), "x"),
        (carried_service(bytes(32)), token),
        (carried_service(state="cd" * 16), token),
        (carried_service(name="other"), token),
    ):
        ((status, body),) = ask(service, piece({"ids": [3], TOKEN: sent}))
        assert (status, body["type"]) == (400, "InvalidToken")


def test_a_token_expires() -> None:
    day = SETTINGS.token_seconds
    ((_, first),) = ask(carried_service(now=5 * day), piece([1, 2], start="true"))

    def sent(now: float) -> tuple[int, str]:
        ((status, body),) = ask(carried_service(now=now), piece({"ids": [3], TOKEN: first[TOKEN]}))
        return status, body.get("type", "")

    assert [sent(now) for now in (4 * day, 5 * day, 6 * day)] == [(200, "")] * 3
    assert [sent(now) for now in (4 * day - 2, 6 * day + 2)] == [(410, "SessionUnknown")] * 2


def test_a_key_is_replaced_without_the_end_of_a_session() -> None:
    new = bytes(reversed(range(32)))
    ((_, first),) = ask(carried_service(KEY), piece([1, 2], start="true"))
    ((_, second),) = ask(carried_service(new, KEY), piece({"ids": [3], TOKEN: first[TOKEN]}))

    ((status, third),) = ask(carried_service(new), piece({"ids": [4], TOKEN: second[TOKEN]}))
    assert (status, third["total"]) == (200, 10)
    assert ask(carried_service(new), piece({"ids": [3], TOKEN: first[TOKEN]}))[0][0] == 400
