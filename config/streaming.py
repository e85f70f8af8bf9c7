"""`streaming:` of the YAML: sessions, and the store that has them between requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from ..sessions.settings import (
    RedisSettings,
    SessionFields,
    SessionSettings,
    cluster_limit_errors,
    normalize_field_name,
    redis_setting_errors,
)
from .diagnostics import Location
from .fields import FieldName, NonNegativeInt, PositiveFloat, PositiveInt, Variable
from .strict import Strict, as_mapping

_TAKEN = {"accept", "body", "connection", "content_length", "content_type", "data", "host", "id", "inputs", "instances"}
_TAKEN |= {"parameters", "transfer_encoding", "authorization", "cookie", "describe", "explain"}
_TAKEN |= {"inference_header_content_length", "x_request_deadline_ms", "x_request_timeout_ms"}
"""Headers and JSON keys that have another meaning in a request."""
_FIELDS = SessionFields()


class RedisConfig(Strict):
    """The server that keeps the sessions of several hosts: Redis or Valkey."""

    url: str
    """redis://HOST:PORT/DATABASE, or rediss:// for TLS; without user and password."""
    username: Annotated[str, Field(min_length=1)] | None = None
    """The user to log in as; left out, the server's default user."""
    password_env: Variable | None = None
    """The environment variable of the workers that holds the password; left out, there is none."""
    ca_file: Annotated[str, Field(min_length=1)] | None = None
    """Certificates to check the server's against, on the serving host; left out, those of the system."""
    timeout_seconds: PositiveFloat = RedisSettings.timeout_seconds
    """Seconds for which a batch waits for the server before its requests are refused with 503."""
    replicas: NonNegativeInt = RedisSettings.replicas
    """Replicas that must have a request's state before it is answered: a failover to one loses nothing."""
    cluster: bool = RedisSettings.cluster
    """Whether the server is one node of a cluster, over which the sessions are spread.

    Left out, one server has all sessions.
    """

    @classmethod
    def cross_field_errors(cls, given: Mapping[str, Any]) -> Iterator[tuple[Location, str]]:
        """Yield what a session store would refuse."""
        for key, message in redis_setting_errors(given):
            yield (key,), message


class SessionFieldsConfig(Strict):
    """The names of the headers, and of the JSON fields, that say which session a request belongs to."""

    id: FieldName = _FIELDS.id
    """The session's id."""
    start: FieldName = _FIELDS.start
    """true: this request is the first of its session."""
    end: FieldName = _FIELDS.end
    """true: this request is the last of its session."""
    step: FieldName = _FIELDS.step
    """Timesteps of the session before this request; in a response, those up to the end of the request."""
    token: FieldName = _FIELDS.token
    """With `store: client`: the signed session token."""

    @classmethod
    def cross_field_errors(cls, given: Mapping[str, Any]) -> Iterator[tuple[Location, str]]:
        """Yield names that are given twice, and names that have another meaning in a request."""
        written = {key: given.get(key, field.default) for key, field in cls.model_fields.items()}
        names = {key: normalize_field_name(str(name)) for key, name in written.items()}
        for key, name in names.items():
            first = next(other for other in names if names[other] == name)
            if first != key and key in given:
                yield (key,), f"expected another name than that of {first}"
            if name in _TAKEN:
                yield (key,), f"expected another name than {given[key]}, which a request has for something else"


class StreamingConfig(Strict):
    """Serve the model in sessions: a request has the next timesteps of a session's sequence."""

    store: Literal["disk", "redis", "client"] = "disk"
    """The store of sessions between their requests: disk, redis or client.

    They are this host's disk, a Redis server for several hosts, or the client, which receives a signed session token
    and sends it back with the next request.
    """
    directory: Annotated[str, Field(min_length=1)] | None = None
    """With `store: disk`, the folder on the serving host; left out, one of the user who runs the server."""
    redis: RedisConfig | None = None
    """With `store: redis`: the server."""
    key_env: Variable | None = None
    """With `store: client`: the environment variable with the signing key, 64 hex digits.

    It is the same on all hosts; left out, each host makes a key for itself.
    """
    idle_seconds: PositiveFloat = SessionSettings.idle_seconds
    """Seconds without a request after which a session expires."""
    max_sessions: PositiveInt = SessionSettings.max_sessions
    """The most sessions that may be open at once; one more is refused with 429."""
    max_bytes: PositiveInt = SessionSettings.max_bytes
    """The most bytes that all sessions may take together.

    A session that starts beyond three quarters of them is refused with 429, and a large request of an open one with
    507.
    """
    fields: SessionFieldsConfig = SessionFieldsConfig()
    """Other names for the headers and JSON fields, where TorchServe's own names do not get through."""
    confirm_seconds: PositiveFloat = SessionSettings.confirm_seconds
    """Seconds in which the second request of a session must come that was started without an id."""
    client_header: FieldName | None = None
    """The header in which a proxy names the client; left out, no client has a limit.

    Clients must not be able to set it themselves.
    """
    client_sessions: PositiveInt = SessionSettings.client_sessions
    """With `client_header`: the most sessions that one client may have open; one more is refused with 429."""
    token_seconds: PositiveFloat = SessionSettings.token_seconds
    """With `store: client`: seconds after which a session token expires."""

    @classmethod
    def cross_field_errors(cls, given: Mapping[str, Any]) -> Iterator[tuple[Location, str]]:
        """Yield settings of a store that is not chosen, and a server that is not given."""
        store = given.get("store", "disk")
        for key, own in (("directory", "disk"), ("redis", "redis"), ("key_env", "client")):
            if given.get(key) is not None and store != own:
                yield (key,), f"expected none: it belongs to store: {own}, and the store is {store}"
        directory = given.get("directory")
        if isinstance(directory, str) and directory and not directory.startswith("/"):
            yield ("directory",), f"expected an absolute path, as in /var/lib/tagger, got {directory[:100]!r}"
        if store == "redis" and not given.get("redis"):
            yield ("redis",), "is missing: store: redis needs the server's address, as in {url: redis://cache:6379/0}"
        if isinstance(header := given.get("client_header"), str):
            for message in _client_header_errors(header, as_mapping(given.get("fields"))):
                yield ("client_header",), message
        if as_mapping(given.get("redis")).get("cluster") is True:
            limits = {key: given.get(key, cls.model_fields[key].default) for key in ("max_sessions", "max_bytes")}
            for key, message in cluster_limit_errors(limits):
                yield (key,), message

    def settings(self, state: str) -> SessionSettings:
        """Return the settings for the manifest.

        `state` is the same for models that can resume each other's sessions.

        Raises `ValueError`: `state` is not 32 hex digits.
        """
        values: dict[str, Any] = as_mapping(self)
        values["redis"] = None if self.redis is None else RedisSettings(**as_mapping(self.redis))
        values["fields"] = SessionFields(**as_mapping(self.fields))
        return SessionSettings(state=state, **values)


def _client_header_errors(header: str, fields: Mapping[str, Any]) -> Iterator[str]:
    name = normalize_field_name(header)
    if name in _TAKEN:
        yield f"expected another name than {header}, which a request has for something else"
    for key, own in {**vars(_FIELDS), **fields}.items():
        if isinstance(own, str) and normalize_field_name(own) == name:
            yield f"expected another name than that of fields.{key}"
