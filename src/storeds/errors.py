"""The exceptions that storeds raises. Each is built from one string, so that a DataLoader worker can pass it on.

StoredsError
├── ConfigError (ValueError)               an argument, option, URL or config is unknown, malformed or contradictory
├── MissingDependencyError (ImportError)   a package that this feature needs is not installed
├── StoreNotFoundError (FileNotFoundError) nothing exists at that path or collection
├── StoreExistsError (FileExistsError)     the target, or an interrupted write of it, exists already
├── FormatError (ValueError)               something exists there, but it is not a complete store of that kind
├── UnavailableError (ConnectionError)     the engine cannot be reached, a file cannot be read, or the store was replaced
├── BadSamplesError (RuntimeError)         more samples were bad than the policy allows, or no sample was good
├── ClosedError (ValueError)               a backend or writer was used after ``close()``
└── RecordError (ValueError)               one record is bad; `on_error` policies handle only this branch
    ├── DecodeError                        its bytes cannot be decoded
    └── TransformError                     a transform failed on it
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Self

from storeds.redaction import redact_message

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
    """Base of every exception that storeds raises on purpose; its message hides the passwords of URLs."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(redact_message(arg) if isinstance(arg, str) else arg for arg in args))


class ConfigError(StoredsError, ValueError):
    """An argument, option, URL or config is unknown, malformed or contradictory."""


class MissingDependencyError(StoredsError, ImportError):
    """A package that the requested feature needs is not installed."""


class StoreNotFoundError(StoredsError, FileNotFoundError):
    """No store is at the given path, name or collection."""


class StoreExistsError(StoredsError, FileExistsError):
    """The target, or an interrupted write of it, exists already."""


class FormatError(StoredsError, ValueError):
    """Something exists there, but it is not a complete store of the expected kind."""


class UnavailableError(StoredsError, ConnectionError):
    """The engine cannot be reached, a file cannot be read, or the opened store was replaced; no policy handles it."""


class BadSamplesError(StoredsError, RuntimeError):
    """More samples were bad than ``max_bad`` or ``max_bad_fraction`` allow, or no good sample was found to replace one."""


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
        The record's name, if the store has names.
    reason : str
        What is wrong with it.
    kind : str
        The kind of fault, for counting: ``record``, ``decode``, ``transform``, or the finding of a damaged picture.

    Notes
    -----
    A `StoreLoader` keeps the attributes of a worker's error. PyTorch's DataLoader raises ``type(error)(message)``: then
    `url`, `position` and `key` are None, `reason` is empty, `kind` is that of the class, and the message contains everything.
    """

    url: str | None = None
    position: int | None = None
    key: str | None = None
    reason: str = ""
    kind: str = "record"

    @classmethod
    def at(cls, url: str, position: int, reason: str, *, key: str | None = None, kind: str | None = None) -> Self:
        """Build the error for one position of one store."""
        named = f" (key {key!r})" if key is not None else ""
        error = cls(f"record {position}{named} of {url}: {reason}")
        error.url, error.position, error.key, error.reason = url, position, key, reason
        error.kind = kind or cls.kind
        return error


class DecodeError(RecordError):
    """The bytes of a record cannot be decoded."""

    kind = "decode"


class TransformError(RecordError):
    """A transform failed on a sample."""

    kind = "transform"


_SHOWN, _COMPARED = 20, 1000  # names


def suggest(name: object, known: Iterable[str], what: str) -> str:
    """Return for example ``"did you mean 'label'? The fields are image, label"``."""
    names = list(known)
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    listing = f"the {what} are {shown}" if names else f"there are no {what}"
    near = difflib.get_close_matches(str(name), names, n=1) if len(names) <= _COMPARED else []
    return f"did you mean {near[0]!r}? {listing[0].upper()}{listing[1:]}" if near else listing


def appeared(url: str) -> StoreExistsError:
    """Return the error for a target that came into being while it was written."""
    return StoreExistsError(f"{url} appeared while it was being written; nothing was replaced")
