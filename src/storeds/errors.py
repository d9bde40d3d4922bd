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
import re
from collections.abc import Iterable
from typing import Self

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


# Precedes user and password, in misspelt URLs too: mongo db://, mongodb//, mongodb:/, "://".
_SLASHES = re.compile(r":/+|//+")
# mongodb/user:password@host. Any first folder that begins so counts as a misspelt scheme.
_SERVER_FIRST = re.compile(r"\s*m\w{0,3}o\w{0,3}d?b\w{0,2}(\W?s\w{0,3})?/", re.IGNORECASE)
_FILE_URL = re.compile(r"\s*(lmdb|hdf5):/", re.IGNORECASE)
# A path with a : in its first part and a later @. A drive, as in C:/ and C:\, is not a user.
# After a blank only if a host and a path follow: "key: value @x" is prose.
_USER_FIRST = re.compile(r"\s*[^\s/:?]*:(?:(?![/\\\s])|(?=\s.*@[^\s@/]+/))", re.DOTALL)

_WORD = re.compile(r"\S+")
# Precedes a password. None of the three alternatives scans past the next colon, so a search takes linear time.
# A user name may contain @ and, in the URL of a server, also /. Messages put quotes and brackets around a URL; / is not
# among these delimiters, because file names may contain : and @.
_BEFORE_PASSWORD = re.compile(
    r"""mongodb(?:\+srv)?:/[^:]*:"""
    r"""|(?:://+|(?<=[\w+.-][\w+.-]):/)[^:/]*:"""
    r"""|(?<![^'"`()\[\]{}<>=,;&?|])[^'"`()\[\]{}<>=,;&?|:/]*:(?=[^/\\])""",
    re.IGNORECASE,
)
# The lookahead ensures that a value follows any name that is tried: no second attempt, so linear time again.
_HIDDEN_NAME = (
    r"(?=[\w.-]+=[^&;\s])(?:[\w.-]*(?:pass|pwd|secret|token|credential|apikey)[\w.-]*|authMechanismProperties)="
)
_NOT_HIDDEN = r"(?!\*{3}(?:[^\w*\s]|$))"  # a value that is hidden already keeps the punctuation after it
_SECRET_OPTION = re.compile(rf"([?&;\s]{_HIDDEN_NAME}){_NOT_HIDDEN}[^&;\s]+", re.IGNORECASE)
_SECRET_OPTION_OF_URL = re.compile(rf"([?&;]{_HIDDEN_NAME}){_NOT_HIDDEN}[^&;]+", re.IGNORECASE)


# An option of a URL whose name may be misspelt, so that `_HIDDEN_NAME` does not find it.
_OPTION = re.compile(rf"[?&;]([\w.-]+)[=:]++\s*+{_NOT_HIDDEN}(?=[^&;])")
_SECRET_WORDS = ("password", "passwd", "passphrase", "secret", "token", "credential", "credentials")
_SECRET_NAMES = ("apikey", "accesskey", "secretkey", "authmechanismproperties")
_NEXT_OPTION = re.compile("[&;]")
_PWD = re.compile("p[swd]{1,4}")
_MOST_OPTIONS = 64  # whose names are compared; of a URL with more, all values are hidden


def _without_secret_options(url: str) -> str:
    """Hide the values of options whose names resemble that of a secret."""
    options = [*_OPTION.finditer(url)]
    shown, end = [], 0
    for option in options:
        # A value ends at the next & or ;, so a name before that is part of it.
        if option.start() >= end and (len(options) > _MOST_OPTIONS or _is_like_secret(option[1])):
            shown += [url[end : option.end()], "***"]
            stop = _NEXT_OPTION.search(url, option.end())
            end = stop.start() if stop else len(url)
    return "".join([*shown, url[end:]])


def _is_like_secret(name: str) -> bool:
    """Return whether the name of an option, or a word in it, is that of a secret, perhaps misspelt."""
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z]+", name[:80])]
    whole = re.sub(r"[\W_]", "", name[:80].lower())
    near = [difflib.get_close_matches(word, _SECRET_WORDS, 1, 0.8) for word in (*words, whole)]
    return any(near) or bool(difflib.get_close_matches(whole, _SECRET_NAMES, 1, 0.8) or _PWD.fullmatch(whole))


def is_like_url(text: str) -> bool:
    """Return whether a text that should be a name has characters of a URL with secrets, so messages must not show it."""
    return "//" in text or not _URL_SIGNS.isdisjoint(text)


_URL_SIGNS = frozenset("@=?&;")


def redact(url: str) -> str:
    """Return a URL with passwords, tokens and other secrets in it replaced by ``***``.

    Works for secrets with blanks, and for URLs with a missing slash or a missing or misspelt scheme. If the text may hold
    several URLs, everything from the start of the first password to the end of the last one is hidden.
    """
    plain = _SECRET_OPTION_OF_URL.sub(r"\1***", _without_any_password(url))
    hidden = redact_message(_without_secret_options(plain))
    return _without_any_password(hidden)  # the text before the password may have changed, so another one may be first


def _without_any_password(url: str) -> str:
    start = password_start(url)
    return url if start is None else f"{url[:start]}***{url[url.rindex('@') :]}"


def password_start(url: str) -> int | None:
    """Return the index where the password of a URL begins, or None without one; it ends at the last @."""
    at = url.rfind("@")
    user = _USER_FIRST.match(url)
    slashes = None if user else _SLASHES.search(url, 0, max(at, 0)) or _SERVER_FIRST.match(url, 0, max(at, 0))
    colon = url.find(":", slashes.end(), at) if slashes else user.end() - 1 if user else -1
    if slashes and _FILE_URL.match(url) and "/" in url[slashes.end() : colon]:
        return None  # file names may contain both
    return colon + 1 if 0 <= colon < at - 1 else None


def redact_message(text: str) -> str:
    """Return `text` with the secrets of any URL in it replaced by ``***``.

    Works for a missing slash, ``mongodb:/user:password@host``, and for a missing scheme, ``user:password@host``.
    """
    return _SECRET_OPTION.sub(
        r"\1***", _WORD.sub(lambda word: _without_password(word[0]), text) if "@" in text else text
    )


def _without_password(word: str) -> str:
    # Up to the *last* @: a password that is not percent-encoded may contain @, / and ?.
    at = word.rfind("@")
    before = _BEFORE_PASSWORD.search(word, 0, at) if at >= 0 else None
    return f"{word[: before.end()]}***{word[at:]}" if before else word


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
    PyTorch re-raises a worker's exception as ``type(error)(message)``: then the attributes are None, and
    the message contains everything.
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


_SHOWN = 20
_COMPARED = 1000


def suggest(name: object, known: Iterable[str], what: str) -> str:
    """Return for example ``"did you mean 'label'? The fields are image, label"``."""
    names = list(known)
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    listing = f"the {what} are {shown}" if names else f"there are no {what}"
    near = difflib.get_close_matches(str(name), names, n=1) if len(names) <= _COMPARED else []
    return f"did you mean {near[0]!r}? {listing[0].upper()}{listing[1:]}" if near else listing
