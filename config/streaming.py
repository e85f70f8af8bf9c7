"""`streaming:` of the YAML: sequences that come piece by piece, and where they are kept between their pieces."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from .diagnostics import Location
from .session_settings import Redis, SessionFields, SessionSettings, is_redis_url
from .strict import Strict, as_mapping, custom_error, format_value

_FIELD = "[A-Za-z][A-Za-z0-9_-]{0,63}"
_VARIABLE = "[A-Za-z_][A-Za-z0-9_]*"

_TAKEN = {"accept", "body", "connection", "content_length", "content_type", "data", "host", "id", "inputs", "instances"}
_TAKEN |= {"parameters", "transfer_encoding"}
"""Headers and JSON keys that are somebody's."""


def normalize_field_name(name: str) -> str:
    """A field's name as it is compared: proxies change its case, and clients write `-` for `_`.

    >>> normalize_field_name("X-Session")
    'x_session'
    """
    return name.lower().replace("-", "_")


def _field_name(name: str) -> str:
    if not re.fullmatch(_FIELD, name):
        raise custom_error(
            f"expected a name that a header can have: letters, digits, - and _, got {format_value(name)}"
        )
    return name


def _variable(name: str) -> str:
    if not re.fullmatch(_VARIABLE, name):
        raise custom_error(f"expected the name of an environment variable, got {format_value(name)}")
    return name


def _redis_url(url: str) -> str:
    if not is_redis_url(url):
        raise custom_error(f"expected redis://HOST:PORT/DATABASE, or rediss:// for TLS, got {format_value(url)}")
    if "@" in urlsplit(url).netloc:
        raise custom_error(
            "expected no user and no password in the address: everyone can read an archive; name the user as username, "
            "and in password_env the environment variable that holds the password"
        )
    return url


FieldName = Annotated[str, Field(json_schema_extra={"pattern": f"^{_FIELD}$"}), AfterValidator(_field_name)]
Variable = Annotated[str, Field(json_schema_extra={"pattern": f"^{_VARIABLE}$"}), AfterValidator(_variable)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class RedisConfig(Strict):
    """The server that keeps the sessions of several hosts: Redis or Valkey."""

    url: Annotated[str, AfterValidator(_redis_url)]
    """redis://HOST:PORT/DATABASE, or rediss:// for TLS; without user and password."""
    username: Annotated[str, Field(min_length=1)] | None = None
    """The user to log in as; left out, the server's default user."""
    password_env: Variable | None = None
    """The environment variable of the workers that holds the password; left out, there is none."""
    ca_file: Annotated[str, Field(min_length=1)] | None = None
    """Certificates to check the server's against, on the serving host; left out, those of the system."""
    timeout_seconds: PositiveFloat = 1.0
    """For how long a batch waits for the server before its requests are refused with 503."""

    @classmethod
    def cross_field_errors(cls, given: Mapping[str, Any]) -> Iterator[tuple[Location, str]]:
        """A user without a password, and certificates without TLS."""
        if given.get("username") is not None and given.get("password_env") is None:
            yield ("password_env",), "is missing: a username needs the environment variable that holds its password"
        url = given.get("url")
        if given.get("ca_file") is not None and isinstance(url, str) and not url.startswith("rediss:"):
            yield ("ca_file",), f"expected none without TLS: the address begins with {url.partition(':')[0]}://"


class SessionFieldsConfig(Strict):
    """The names of the headers, and of the JSON fields, that say which session a piece belongs to."""

    id: FieldName = "ts_request_sequence_id"
    """The session's id."""
    start: FieldName = "ts_request_sequence_start"
    """true: this piece is the first."""
    end: FieldName = "ts_request_sequence_end"
    """true: this piece is the last."""
    step: FieldName = "ts_request_sequence_step"
    """Timesteps that came before this piece; in an answer, those up to its end."""
    token: FieldName = "ts_request_sequence_token"  # noqa: S105 - a field's name
    """With `store: client`: the session itself, sealed."""

    @classmethod
    def cross_field_errors(cls, given: Mapping[str, Any]) -> Iterator[tuple[Location, str]]:
        """Two of them with one name, and names that mean something else in a request."""
        names = {
            key: normalize_field_name(str(given.get(key, field.default))) for key, field in cls.model_fields.items()
        }
        for key, name in names.items():
            first = next(other for other in names if names[other] == name)
            if first != key and key in given:
                yield (key,), f"expected a name of its own, got that of {first}"
            if name in _TAKEN:
                yield (key,), f"expected a name of its own, got {given[key]}, which a request has for something else"


class StreamingConfig(Strict):
    """Serve the model as a stream: a request is a piece of a session's sequence, as it comes."""

    store: Literal["disk", "redis", "client"] = "disk"
    """Where sessions lie between their pieces: on this host's disk, on a Redis server for several hosts, or with the
    client, who gets each session sealed and sends it back with the next piece."""
    directory: Annotated[str, Field(min_length=1)] | None = None
    """With `store: disk`, the folder on the serving host; left out, one of the user who runs the server."""
    redis: RedisConfig | None = None
    """With `store: redis`: the server."""
    key_env: Variable | None = None
    """With `store: client`: the environment variable with the key of the seal, 64 hex digits, the same on all
    hosts; left out, each host makes one for itself."""
    idle_seconds: PositiveFloat = 600.0
    """A session that gets no piece for so long is over."""
    max_sessions: Annotated[int, Field(ge=1)] = 10_000
    """That may be open at once; a further one is refused with 429."""
    max_bytes: Annotated[int, Field(ge=1)] = 2**30
    """That all sessions may take together; a further one is refused with 429."""
    fields: SessionFieldsConfig = SessionFieldsConfig()
    """Other names for the headers and JSON fields, where TorchServe's own names do not get through."""

    @classmethod
    def cross_field_errors(cls, given: Mapping[str, Any]) -> Iterator[tuple[Location, str]]:
        """Settings of a store that is not chosen, and a server that is not named."""
        store = given.get("store", "disk")
        for key, own in (("directory", "disk"), ("redis", "redis"), ("key_env", "client")):
            if given.get(key) is not None and store != own:
                yield (key,), f"expected none: it belongs to store: {own}, and the store is {store}"
        if store == "redis" and not given.get("redis"):
            yield ("redis",), "is missing: store: redis needs the server's address, as in {url: redis://cache:6379/0}"

    def settings(self, state: str) -> SessionSettings:
        """What the serving half is told; `state` names the models that can go on from each other's sessions."""
        return SessionSettings(
            store=self.store,
            state=state,
            directory=self.directory,
            redis=None if self.redis is None else Redis(**as_mapping(self.redis)),
            key_env=self.key_env,
            idle_seconds=self.idle_seconds,
            max_sessions=self.max_sessions,
            max_bytes=self.max_bytes,
            fields=SessionFields(**as_mapping(self.fields)),
        )
