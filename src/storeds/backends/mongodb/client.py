"""Parses MongoDB URLs, creates clients, and converts PyMongo's exceptions to ours, with secrets removed."""

from __future__ import annotations

import contextvars
import math
import random
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar
from urllib.parse import unquote, unquote_plus

import pymongo
from pymongo import ReadPreference, uri_parser
from pymongo.errors import ConfigurationError, OperationFailure, PyMongoError
from pymongo.write_concern import WriteConcern

from storeds._utils.urls import StoreURL
from storeds.backends.handles import HandleRef
from storeds.backends.raw import HandleOpener
from storeds.errors import ConfigError, StoredsError, UnavailableError
from storeds.redaction import is_secret, redact_message

__all__ = [
    "ClientFactory",
    "ClientOpener",
    "Location",
    "durable",
    "leased_database",
    "parse_location",
    "pymongo_errors",
    "within",
]

ClientFactory = Callable[[str], Any]
T = TypeVar("T")

DEADLINE = 30.0  # seconds; longer than an election
# Small on purpose: a server has workers × ranks clients. The URL overrides each value.
_DEFAULTS = {"maxPoolSize": 2, "serverSelectionTimeoutMS": 10_000, "appName": "storeds"}
_CLOSING = 0.5  # seconds
_DURABLE = WriteConcern(w="majority", j=True)
_UNAUTHENTICATED = "authentication failed"
_REFUSED = {13: "not authorised", 18: _UNAUTHENTICATED, 8000: _UNAUTHENTICATED}

# PyMongo draws request ids, pauses and servers from Python's global generator, which would change the random numbers of
# a seeded training program.
for _name, _module in list(sys.modules.items()):
    if _name.startswith("pymongo.") and getattr(_module, "random", None) is random:
        _module.random = random.SystemRandom()  # type: ignore[attr-defined]  # a module of another package


@dataclass(frozen=True)
class Location:
    """Where a collection is: PyMongo's part of the URL, and ours.

    Attributes
    ----------
    deadline : float
        Seconds that one operation may take with all its attempts: the URL's ``timeoutMS``, of which 0 means infinity.
    """

    uri: str = field(repr=False)
    database: str
    collection: str
    url: str
    deadline: float = DEADLINE


def parse_location(url: str | StoreURL) -> Location:
    """Split ``mongodb://hosts/db/collection?options``; raises ConfigError, also for unknown options.

    The last path segment is the collection. The rest goes to PyMongo, with ``/db``, so that ``authSource`` keeps its
    default.
    """
    parsed = StoreURL.parse(url)
    shown, scheme = str(parsed), parsed.scheme
    body, _, query = parsed.path.partition("?")
    userinfo, at, place = body.rpartition("@")
    hosts, *path = place.split("/")
    if not hosts or len(path) != 2 or not all(path):
        raise ConfigError(f"{shown}: expected {scheme}://[user:password@]host[:port][,…]/database/collection[?options]")
    database, collection = map(unquote, path)
    if re.search(r"[/\\. \"$\0]", database):
        raise ConfigError(f"{shown}: {database!r} cannot be the name of a database")
    if collection.startswith("system.") or re.search(r"[$\0]|^\.|\.$|\.\.", collection):
        raise ConfigError(f"{shown}: {collection!r} cannot be the name of a collection")
    server = f"{userinfo}{at}{hosts}/{path[0]}"
    uri = f"{scheme}://{server}{'?' + query if query else ''}"
    try:
        # By default PyMongo only warns about an unknown option or a bad value, so a misspelling could go unnoticed.
        options = uri_parser.split_options(query, validate=True, warn=False) if query else {}
        # Connecting resolves the name of an SRV URI: check only its user and database here, without options.
        uri_parser.parse_uri(uri if scheme == "mongodb" else f"mongodb://{server}", validate=True, warn=False)
    except (PyMongoError, ValueError, TypeError, OSError) as error:  # OSError: a certificate file
        wrong = f"{shown}: {_scrub(str(error), uri)}"
    else:
        return Location(uri, database, collection, shown, options.get("timeoutMS", DEADLINE) or math.inf)
    raise ConfigError(wrong)  # outside the handler: PyMongo's error as context would quote the URL


def _scrub(text: str, uri: str) -> str:
    """Return `text` with every secret of `uri` removed, in any encoding."""
    userinfo = uri.partition("://")[2].rpartition("@")[0]
    secrets = {userinfo.partition(":")[2]}
    for option in uri.partition("?")[2].split("&"):
        name, _, value = option.partition("=")
        if is_secret(name):
            secrets.add(value)
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        for form in {secret, unquote(secret), unquote_plus(secret)}:
            text = text.replace(form, "***")
    return redact_message(text)


@contextmanager
def pymongo_errors(location: Location) -> Iterator[None]:
    """Convert PyMongo's exceptions to UnavailableError or ConfigError that name the store without secrets."""
    try:
        yield
    except StoredsError:  # some of ours are also ValueErrors
        raise
    except (ConfigurationError, ValueError) as error:
        reason = _scrub(str(error), location.uri)
        cause = error.__cause__ or error.__context__  # which one depends on PyMongo's version
        if type(cause).__module__ == "dns.resolver":  # the lookup of a mongodb+srv:// name failed
            raise UnavailableError(f"{location.url}: MongoDB cannot be reached: {reason}") from error
        raise ConfigError(f"{location.url}: {reason}") from None
    except PyMongoError as error:
        code = error.code if isinstance(error, OperationFailure) else None
        what = _REFUSED.get(code or 0, "MongoDB refused" if code else "MongoDB cannot be reached")
        # A server selection error ends with a dump of the whole topology; drop it.
        reason = str(error).partition(", Timeout:")[0].partition(", full error:")[0]
        reason = _scrub(re.sub(r"(to execute command) \{ (\w+):.*", r"\1 \2", reason, flags=re.DOTALL), location.uri)
        raise UnavailableError(f"{location.url}: {what}: {reason}") from error


@contextmanager
def leased_database(ref: HandleRef[Any], location: Location) -> Iterator[Any]:
    """Lease the client of `ref` and yield the location's database; converts PyMongo's exceptions to ours."""
    with ref.lease() as client, pymongo_errors(location):
        try:
            yield client[location.database]
        except OperationFailure as error:
            if _REFUSED.get(error.code or 0) == _UNAUTHENTICATED:
                # PyMongo now considers the server unknown, so this client's next operation would time out.
                ref.invalidate()
            raise


def durable(database: Any) -> Any:
    """Return a database whose writes end when the majority of the nodes has them in its journal, and which reads from the primary."""
    try:
        # A secondary, whatever the URL prefers, may lag behind the majority.
        return database.with_options(write_concern=_DURABLE, read_preference=ReadPreference.PRIMARY)
    except NotImplementedError:  # mongomock, which needs no write concern
        return database


def within(seconds: float | None, operation: Callable[[], T]) -> T:
    """Call `operation` with a timeout of PyMongo, None for none, and return its result.

    It runs in a context of its own: an interrupt may leave the timeout set, and every later operation would fail.
    """

    def limited() -> T:
        with pymongo.timeout(seconds):
            return operation()

    return contextvars.copy_context().run(limited)


@dataclass(frozen=True)
class ClientOpener(HandleOpener[Any]):
    """Creates one client per process and URI, which connects on its first operation."""

    location: Location
    factory: ClientFactory | None = None
    may_wait: ClassVar[bool] = True

    @property
    def url(self) -> str:
        return self.location.url

    def key(self) -> tuple[str, ClientFactory | None]:
        return self.location.uri, self.factory

    def open(self) -> Any:
        uri = self.location.uri
        with pymongo_errors(self.location):  # a mongodb+srv:// name may be resolved here
            if self.factory is not None:
                return self.factory(uri)
            given = {name.lower() for name in re.findall(r"[?&]([A-Za-z]+)=", uri)}
            defaults: dict[str, Any] = {name: value for name, value in _DEFAULTS.items() if name.lower() not in given}
            return pymongo.MongoClient(uri, connect=False, **defaults)

    def close(self, handle: Any, /) -> None:
        # PyMongo reports ended sessions to the server; do not wait for a server that is gone.
        within(_CLOSING, handle.close)
