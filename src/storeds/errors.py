"""The exceptions storeds raises, each built from one string so that a DataLoader worker can hand it on.

StoredsError
├── ConfigError (ValueError)               something asked for is unknown, malformed or contradictory
├── MissingDependencyError (ImportError)   a package that this feature needs is not installed
├── StoreNotFoundError (FileNotFoundError) nothing is at that path or collection
├── StoreExistsError (FileExistsError)     a target, or what an interrupted writer left, is in the way
├── FormatError (ValueError)               something is there, but it is not a whole store of that kind
├── UnavailableError (ConnectionError)     the engine cannot be reached, a file not be read, or the store was replaced
├── BadSamplesError (RuntimeError)         more samples were bad than the policy allows, or none was good
├── ClosedError (ValueError)               a backend or writer was used after ``close()``
└── RecordError (ValueError)               one record is bad; the only branch an ``on_error`` policy deals with
    ├── DecodeError                        its bytes do not decode
    └── TransformError                     a transform failed on it
"""

from __future__ import annotations

from typing import Self

from storeds._redact import redact_message

__all__ = [
    "BadSamplesError",
    "ClosedError",
    "ConfigError",
    "DecodeError",
    "FormatError",
    "MissingDependencyError",
    "RecordError",
    "StoreExistsError",
    "StoreNotFoundError",
    "StoredsError",
    "TransformError",
    "UnavailableError",
]


class StoredsError(Exception):
    """Base of every exception that storeds raises on purpose; its message shows no password of a URL."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(redact_message(arg) if isinstance(arg, str) else arg for arg in args))


class ConfigError(StoredsError, ValueError):
    """Something asked for is unknown, malformed or contradictory."""


class MissingDependencyError(StoredsError, ImportError):
    """A package that the requested feature needs is not installed."""


class StoreNotFoundError(StoredsError, FileNotFoundError):
    """No store is at the given path, name or collection."""


class StoreExistsError(StoredsError, FileExistsError):
    """The target, or what an interrupted writer left of it, already exists."""


class FormatError(StoredsError, ValueError):
    """What is stored there is not a whole store of the expected kind."""


class UnavailableError(StoredsError, ConnectionError):
    """The engine cannot be reached, a file may not be read, or the opened store is no longer there; no policy swallows it."""


class BadSamplesError(StoredsError, RuntimeError):
    """More samples were bad than ``max_bad`` or ``max_bad_fraction`` allow, or no good one was found in their place."""


class ClosedError(StoredsError, ValueError):
    """A backend or writer was used after it was closed."""


class RecordError(StoredsError, ValueError):
    """One record is bad; `Backend.get_many` returns it as a value in the record's place.

    Attributes
    ----------
    url : str or None
        The store, secrets removed.
    position : int or None
        The record's position in the store.
    key : str or None
        The record's own name, where the store has one.
    reason : str
        What is wrong with it.
    kind : str
        The sort of fault, for counting: ``record``, ``decode``, ``transform``, or what triage called it.

    Notes
    -----
    PyTorch re-raises a worker's exception as ``type(error)(message)``: the attributes are then None and
    the message still says everything.
    """

    url: str | None = None
    position: int | None = None
    key: str | None = None
    reason: str = ""
    kind: str = "record"

    @classmethod
    def at(cls, url: str, position: int, reason: str, *, key: str | None = None, kind: str | None = None) -> Self:
        """Build the error for one place in one store."""
        named = f" (key {key!r})" if key is not None else ""
        error = cls(f"record {position}{named} of {url}: {reason}")
        error.url, error.position, error.key, error.reason = url, position, key, reason
        error.kind = kind or cls.kind
        return error


class DecodeError(RecordError):
    """The bytes of a record do not decode to what they claim to be."""

    kind = "decode"


class TransformError(RecordError):
    """A transform failed on a sample."""

    kind = "transform"
