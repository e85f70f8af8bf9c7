from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from streaming_archive import streaming_manifest

from torchserve_neuron_lstm.archiver_ext.commands.schema import json_schema
from torchserve_neuron_lstm.config.load import parse_config
from torchserve_neuron_lstm.config.manifest import parse_manifest
from torchserve_neuron_lstm.config.manifest_writer import manifest_text
from torchserve_neuron_lstm.config.schema import ServingConfig
from torchserve_neuron_lstm.config.streaming import StreamingConfig
from torchserve_neuron_lstm.handlers.streaming.open_sessions import open_store
from torchserve_neuron_lstm.sessions.settings import SessionSettings

from .config_texts import problems, small_block

REDIS = "store: redis, redis: {url: 'redis://cache:6379/0'"
STATE = "0123456789abcdef" * 2


def text_of(streaming: str, **keys: str) -> str:
    return small_block(streaming=streaming, **keys)


def parsed(streaming: str, **keys: str) -> ServingConfig:
    return parse_config(text_of(streaming, **keys), "f")


def settings(streaming: str) -> SessionSettings:
    config = parsed(streaming).streaming
    assert config is not None
    return config.settings(STATE)


def complaints(streaming: str, **keys: str) -> list[str]:
    return problems(text_of(streaming, **keys))


def test_without_the_block_nothing_streams() -> None:
    assert parse_config(text_of("null"), "f").streaming is None
    assert parse_config(text_of("{}").replace("  streaming: {}\n", ""), "f").streaming is None


def test_an_empty_block_takes_all_the_defaults() -> None:
    found = settings("{}")

    assert (found.store, found.directory, found.redis, found.key_env) == ("disk", None, None, None)
    assert (found.idle_seconds, found.max_sessions, found.max_bytes) == (600.0, 10_000, 2**30)
    assert found.fields.id == "ts_request_sequence_id"
    assert found.fields.step == "ts_request_sequence_step"


def test_the_serving_half_gets_what_was_written() -> None:
    found = settings(
        "{store: redis, redis: {url: 'rediss://cache:6380/2', username: lstm, password_env: SECRET, "
        "ca_file: /etc/ca.pem, timeout_seconds: 0.5}, idle_seconds: 30, max_sessions: 7, max_bytes: 4096, "
        "fields: {id: X-Session, token: X-Token}}"
    )

    assert found.redis is not None
    assert (found.redis.url, found.redis.username) == ("rediss://cache:6380/2", "lstm")
    assert (found.redis.password_env, found.redis.ca_file) == ("SECRET", "/etc/ca.pem")
    assert found.redis.timeout_seconds == 0.5
    assert (found.idle_seconds, found.max_sessions, found.max_bytes) == (30.0, 7, 4096)
    assert (found.fields.id, found.fields.token, found.fields.end) == (
        "X-Session",
        "X-Token",
        "ts_request_sequence_end",
    )
    assert found.state == STATE


CONTRADICTIONS = [
    ("{store: redis}", "redis: is missing: store: redis needs the server's address"),
    (
        "{redis: {url: 'redis://cache:6379/0'}}",
        "redis: expected none: it belongs to store: redis, and the store is disk",
    ),
    (f"{{{REDIS}}}, directory: /srv}}", "directory: expected none: it belongs to store: disk, and the store is redis"),
    ("{key_env: KEY}", "key_env: expected none: it belongs to store: client, and the store is disk"),
    ("{store: client, directory: /srv}", "directory: expected none: it belongs to store: disk"),
    (f"{{{REDIS}, username: lstm}}}}", "redis.password_env: is missing: a username needs"),
    (f"{{{REDIS}, ca_file: ca.pem}}}}", "redis.ca_file: expected none without TLS: the address begins with redis://"),
    (
        "{store: redis, redis: {url: 'redis://cache:6379/2', cluster: true}}",
        "redis.url: expected database 0 with cluster: true, got 'redis://cache:6379/2': a cluster has no other",
    ),
    (f"{{{REDIS}, cluster: 1}}}}", "redis.cluster: expected true or false"),
    (
        f"{{{REDIS}, cluster: true}}, max_sessions: 15}}",
        "max_sessions: expected 16 or more with cluster: true, got 15: each of 16 partitions has its share",
    ),
    (f"{{{REDIS}, cluster: true}}, max_bytes: 9}}", "max_bytes: expected 16 or more with cluster: true, got 9"),
    ("{fields: {id: session, start: Session}}", "fields.start: expected another name than that of id"),
    ("{fields: {step: TS_REQUEST_SEQUENCE_ID}}", "fields.step: expected another name than that of id"),
    ("{fields: {id: X-Session, start: x_session}}", "fields.start: expected another name than that of id"),
    ("{fields: {id: Content-Type}}", "fields.id: expected another name than Content-Type, which a request has"),
    ("{fields: {id: X-Request-Deadline-Ms}}", "fields.id: expected another name than X-Request-Deadline-Ms, which"),
    ("{fields: {id: x_request_timeout_ms}}", "fields.id: expected another name than x_request_timeout_ms, which"),
    ("{fields: {start: describe}}", "fields.start: expected another name than describe, which a request has"),
    ("{fields: {end: Explain}}", "fields.end: expected another name than Explain, which a request has"),
    (
        "{fields: {step: Inference-Header-Content-Length}}",
        "fields.step: expected another name than Inference-Header-Content-Length, which a request has",
    ),
    ("{fields: {token: Authorization}}", "fields.token: expected another name than Authorization, which a request has"),
    ("{fields: {token: cookie}}", "fields.token: expected another name than cookie, which a request has"),
    ("{client_header: Host}", "client_header: expected another name than Host, which a request has for something else"),
    ("{client_header: ts-request-sequence-id}", "client_header: expected another name than that of fields.id"),
    ("{client_header: X-A, fields: {step: x_a}}", "client_header: expected another name than that of fields.step"),
    ("{fields: {end: instances}}", "fields.end: expected another name than instances, which a request has"),
    ("{fields: {id: IDS}}", "fields.id: expected another name than that of the input or output ids"),
    ("{fields: {id: 'a b'}}", "fields.id: expected a name that a header can have"),
    ("{fields: {id: 7th}}", "fields.id: expected a name that a header can have"),
    ("{store: client, key_env: MY-KEY}", "key_env: expected the name of an environment variable"),
    ("{store: memory}", "store: expected"),
    ("{idle_seconds: 0}", "idle_seconds: expected more than 0, got 0"),
    ("{idle_seconds: .inf}", "idle_seconds: expected"),
    ("{max_sessions: 0}", "max_sessions: expected"),
    ("{max_bytes: 1.5}", "max_bytes: expected"),
    ("{store: disk, directory: ''}", "directory: expected some text"),
    ("{directory: kept}", "directory: expected an absolute path, as in /var/lib/tagger, got 'kept'"),
    ("{stoer: disk}", "stoer: is not a key here: did you mean store?"),
]


@pytest.mark.parametrize(("streaming", "said"), CONTRADICTIONS)
def test_what_does_not_go_together_is_refused_with_its_path(streaming: str, said: str) -> None:
    (complaint,) = complaints(streaming)

    assert complaint.startswith(f"neuron_lstm.streaming.{said}")


@pytest.mark.parametrize(
    "url",
    [
        *("cache:6379", "http://cache:6379/0", "redis://", "redis://cache:port/0", "redis://cache:0/0"),
        *("redis://cache:6379/first", "redis://cache:6379/0?password=x", "redis://cache:6379/0#x", "redis://[cache/0"),
    ],
)
def test_an_address_that_the_server_could_not_use_is_refused(url: str) -> None:
    (complaint,) = complaints(f"{{store: redis, redis: {{url: '{url}'}}}}")

    assert complaint.startswith("neuron_lstm.streaming.redis.url: expected redis://HOST:PORT/DATABASE, or rediss://")


@pytest.mark.parametrize("url", ["redis://me:secret@cache:6379/0", "redis://me@cache/0", "redis://@cache/0"])
def test_an_address_with_a_secret_is_refused_without_repeating_it(url: str) -> None:
    """An archive and its log can be read by others."""
    (complaint,) = complaints(f"{{store: redis, redis: {{url: '{url}'}}}}")

    assert "expected no user and no password in the address" in complaint
    assert "secret" not in complaint


urls = st.builds(
    "{}://{}{}{}".format,
    st.sampled_from(["redis", "rediss", "http", ""]),
    st.sampled_from(["cache", "[::1]", "127.0.0.1", "", "a@cache"]),
    st.sampled_from(["", ":6379", ":0", ":70000", ":x"]),
    st.sampled_from(["", "/", "/0", "/15", "/x", "/0?a=b", "/0#a", "/-1"]),
)


@given(urls, st.none() | st.just("lstm"), st.none() | st.just("SECRET"), st.none() | st.just("ca.pem"))
def test_what_is_packaged_can_be_opened(
    url: str, username: str | None, password_env: str | None, ca_file: str | None
) -> None:
    """The rules of the YAML are those of the store: every accepted value works on the serving host."""
    server = {"url": url, "username": username, "password_env": password_env, "ca_file": ca_file}
    try:
        config = StreamingConfig.model_validate({"store": "redis", "redis": server})
    except ValueError:
        return
    open_store(config.settings(STATE), "tagger", {})


@pytest.mark.parametrize(
    ("streaming", "keys", "said"),
    [
        ("{}", {"overflow": "truncate"}, "overflow: expected reject: timesteps cut from a request"),
        ("{store: client}", {"codec": "codec:Codec"}, "streaming.store: expected disk or redis"),
        (
            "{fields: {step: tags}}",
            {"outputs": "[tags]"},
            "streaming.fields.step: expected another name than that of the input",
        ),
    ],
)
def test_keys_beside_the_block_are_refused_that_sessions_cannot_have(
    streaming: str, keys: dict[str, str], said: str
) -> None:
    """A cut leaves a gap in a sequence, and a codec's body has no place for the session that a client keeps."""
    (complaint,) = complaints(streaming, **keys)

    assert complaint.startswith(f"neuron_lstm.{said}")
    assert parsed("{}", codec="codec:Codec").streaming is not None


@pytest.mark.parametrize("outputs", ["7", "{tags: 1}", "[1, tags]", "tags"])
@pytest.mark.parametrize(
    "streaming", ["{fields: {step: tags}}", "{fields: {step: 7}}", "{fields: 7}", "7", "{store: 7}"]
)
def test_values_of_other_kinds_are_refused_like_any(streaming: str, outputs: str) -> None:
    assert complaints(streaming, outputs=outputs, overflow="truncate", codec="codec:Codec")


def is_valid(text: str) -> bool:
    return bool(jsonschema.Draft202012Validator(json_schema()).is_valid(yaml.safe_load(text)))


@pytest.mark.parametrize(
    "streaming", ["{}", "null", "{store: client, key_env: KEY}", f"{{{REDIS}}}}}", "{fields: {id: X-Session}}"]
)
def test_an_editor_takes_what_the_loader_takes(streaming: str) -> None:
    parsed(streaming)

    assert is_valid(text_of(streaming))


@pytest.mark.parametrize(
    "streaming",
    ["{store: memory}", "{idle_seconds: 0}", "{max_sessions: 0}", "{stoer: disk}", "{fields: {id: 'a b'}}", "[]"],
)
def test_an_editor_sees_single_values_that_the_loader_refuses(streaming: str) -> None:
    complaints(streaming)

    assert not is_valid(text_of(streaming))


whole = st.integers(1, 2**62)
seconds = st.floats(1e-3, 1e9, allow_nan=False)


@given(st.sampled_from(["disk", "redis", "client"]), whole, whole, seconds)
def test_settings_come_back_from_a_manifest_as_they_were(
    store: str, max_sessions: int, max_bytes: int, idle_seconds: float
) -> None:
    values: dict[str, Any] = {"store": store, "max_sessions": max_sessions, "max_bytes": max_bytes}
    own: dict[str, Any] = {"redis": {"redis": {"url": "redis://cache:6379/0"}}, "client": {"key_env": "KEY"}}
    config = StreamingConfig.model_validate({**values, "idle_seconds": idle_seconds, **own.get(store, {})})
    manifest = streaming_manifest(config.settings(STATE))

    assert parse_manifest(manifest_text(manifest)) == manifest
