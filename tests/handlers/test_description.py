"""The readiness of a model is what its engine and its store do when somebody asks."""

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
from fake_model import FakeModel, make_manifest
from session_service import make_service as make_session_service
from session_service import piece

from torchserve_neuron_lstm.handlers.description import readiness
from torchserve_neuron_lstm.handlers.formats import make_codec
from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest
from torchserve_neuron_lstm.handlers.formats.request import ModelIdentity
from torchserve_neuron_lstm.handlers.responses import RawResponse
from torchserve_neuron_lstm.handlers.service import Service
from torchserve_neuron_lstm.handlers.streaming.store_sessions import StoreSessions
from torchserve_neuron_lstm.handlers.streaming.token_sessions import TokenSessions
from torchserve_neuron_lstm.sessions.settings import Limits
from torchserve_neuron_lstm.sessions.sqlite.store import SqliteStore

DESCRIBE = RawRequest({}, {"describe": "True"})
LIMITS = Limits(sessions=10, bytes=10**6, idle_seconds=600)


def make_service(poison: float = 66.0) -> Service:
    """A service of the fake model, which fails for inputs with this value."""
    manifest = make_manifest()
    codec = make_codec(manifest, ModelIdentity("model", "1.0"))
    return Service(FakeModel(manifest, poison), codec, {"backend": "fake"})


def told(response: RawResponse) -> tuple[int, object]:
    return response.status, json.loads(response.body)["readiness"]


def test_a_model_that_runs_is_ready() -> None:
    (response,) = make_service().handle([DESCRIBE])

    assert told(response) == (200, {"ready": True, "engine": True, "warm_up": 4, "store": None})
    assert json.loads(response.body)["backend"] == "fake"


def test_a_model_whose_engine_fails_is_not_ready(caplog: pytest.LogCaptureFixture) -> None:
    (response,) = make_service(poison=0.0).handle([DESCRIBE])

    assert told(response) == (503, {"ready": False, "engine": False, "warm_up": 4, "store": None})
    assert "a kernel failed" in caplog.text
    assert "kernel" not in response.body.decode()


def test_a_model_whose_store_cannot_be_used_is_not_ready(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "sessions"
    blocked.write_text("no directory")
    service = make_session_service(StoreSessions(SqliteStore(blocked, "model", LIMITS)))
    (before,) = service.handle([DESCRIBE])
    blocked.unlink()
    (after,) = service.handle([DESCRIBE])

    assert told(before)[0] == 503
    assert told(before)[1] == {"ready": False, "engine": True, "warm_up": 4, "store": False}
    assert str(blocked) in caplog.text
    assert str(tmp_path) not in before.body.decode()
    assert told(after)[0] == 200


def test_all_who_ask_in_one_batch_share_one_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """A try of a store that another process holds takes seconds, which the requests of the batch wait."""
    monkeypatch.setattr(StoreSessions, "available", tries := Mock(return_value=True))

    assert len({response.body for response in make_session_service().handle([DESCRIBE] * 64)}) == 1
    assert tries.call_count == 1


def test_sessions_of_clients_need_no_store() -> None:
    """A signing key was there when the archive was loaded."""
    sessions = TokenSessions((b"k" * 32,), b"s" * 16, 4, "model", 60.0)

    assert readiness(FakeModel(), sessions)["store"] is None


def test_a_question_in_a_batch_is_answered_beside_requests_and_leaves_no_session() -> None:
    """A probe comes at any time; TorchServe puts it into a batch with inference requests."""
    service = make_session_service()
    first, asked, second = service.handle([piece([1, 2]), DESCRIBE, piece([3])])

    assert told(asked)[0] == 200
    assert [first.status, second.status] == [200, 200]
    assert json.loads(first.body)["ts_request_sequence_step"] == 2
    assert json.loads(second.body)["ts_request_sequence_step"] == 1
    assert isinstance(service.sessions, StoreSessions)
    assert service.sessions.store.totals().sessions == 2
