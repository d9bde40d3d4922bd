"""Reads store URLs and takes the secrets out of them before anyone sees them."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote

from storeds.errors import ConfigError
from storeds.registry import BACKENDS

__all__ = ["file_path", "file_url", "redact", "redact_message", "split_options", "split_scheme"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_ONE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/(?!/)")
_HOSTS = re.compile(r"[^:,]*(:\d+)?(,[^:,]*(:\d+)?)*")
_FILES = (None, "lmdb", "hdf5")
# A path with a : in its first part and an @ behind it. A drive, as in C:/ and C:\, is no user.
_USER_OF_A_FILE = re.compile(r"[^\s/:?]*:(?![/\\\s]).*@", re.DOTALL)

_WORD = re.compile(r"\S+")
_BLANK = re.compile(r"\s")
_START = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*:/+")
# What stands in front of a password. In none of the three can a scan run past the next colon, so a search is linear.
# A user's name may hold @ and, where the path is no file's, / too. Quotes and the like are what messages put around a
# URL; a / is not among them, because file names may hold : and @.
_BEFORE_PASSWORD = re.compile(
    r"""mongodb(?:\+srv)?:/[^:]*:"""
    r"""|(?:://+|(?<=[\w+.-][\w+.-]):/)[^:/]*:"""
    r"""|(?<![^'"`()\[\]{}<>=,;&?|])[^'"`()\[\]{}<>=,;&?|:/]*:(?=[^/\\])""",
    re.IGNORECASE,
)
# The lookahead makes sure that whatever name is tried is followed by a value: no second try, so linear again.
_SECRET_OPTION = re.compile(
    r"([?&;\s](?=[\w.-]+=[^&;\s])"
    r"(?:[\w.-]*(?:pass|pwd|secret|token|credential|apikey)[\w.-]*|authMechanismProperties)=)[^&;\s]+",
    re.IGNORECASE,
)


def redact(url: str) -> str:
    """Return a URL with passwords, tokens and other secrets in it replaced by ``***``, also where its password holds blanks."""
    return redact_message(_without_password(url) if _has_blanks(url) else url)


def _has_blanks(url: str) -> bool:
    """Whether blanks stand where a URL may have user and password, also if these hold what should have been encoded."""
    start, at = _START.match(url), url.rfind("@")
    return start is not None and bool(_BLANK.search(url, start.end(), max(at, 0)))


def redact_message(text: str) -> str:
    """Return `text` with the secrets of any URL in it replaced by ``***``.

    Also where a URL lacks a slash, ``mongodb:/user:password@host``, or its scheme, ``user:password@host``.
    """
    return _SECRET_OPTION.sub(
        r"\1***", _WORD.sub(lambda word: _without_password(word[0]), text) if "@" in text else text
    )


def _without_password(word: str) -> str:
    # Up to the *last* @: a password that should have been percent-encoded may hold @, / and ? itself.
    at = word.rfind("@")
    before = _BEFORE_PASSWORD.search(word, 0, at) if at >= 0 else None
    return f"{word[: before.end()]}***{word[at:]}" if before else word


def split_scheme(url: str) -> tuple[str | None, str]:
    """Return (lower-case scheme, the rest); the scheme of a bare path is None.

    Raises
    ------
    ConfigError
        What seems a path is a URL that lacks a slash or its scheme, or a file is given a user and a password.
    """
    match = _SCHEME.match(url)
    scheme, rest = (match[1].lower(), url[match.end() :]) if match else (None, url)
    if scheme is None:
        _refuse_one_slash(url)
    if scheme in _FILES:
        _refuse_user(url, scheme, rest)
    elif scheme.startswith("mongodb") and _BLANK.search(_user_and_password(rest)):
        raise ConfigError(
            f"{redact(url)!r}: a user or password with blanks must be percent-encoded, as urllib.parse.quote_plus does"
        )
    return scheme, rest


def _user_and_password(rest: str) -> str:
    """Return what of a URL, behind its scheme, stands for them, also where a / in a password should have been encoded."""
    hosts = rest.partition("/")[0]
    if "@" in hosts or _HOSTS.fullmatch(hosts):
        return hosts.rpartition("@")[0]
    return rest.rpartition("@")[0]


def _refuse_one_slash(url: str) -> None:
    match = _ONE_SLASH.match(url)
    if match and match[1].lower() in BACKENDS.names():
        raise ConfigError(
            f"{redact(url)!r}: write two slashes, {match[1]}://…, and give it as text, since a Path keeps one of them; "
            "a path that is meant so begins with ./"
        )


def _refuse_user(url: str, scheme: str | None, rest: str) -> None:
    """Refuse a password where a path belongs: as part of an absolute path, nothing would tell it from a folder's name."""
    match = _USER_OF_A_FILE.match(rest)
    if match is None or os.path.lexists(os.path.expanduser(rest.partition("?")[0] if scheme else rest)):
        return
    start = len(url) - len(rest) + rest.index(":") + 1
    shown = redact(f"{url[:start]}***{url[url.rindex('@') :]}")  # its options too
    what = (
        f"{scheme}:// is for files, which have no password" if scheme else "a URL begins with its scheme, mongodb://…"
    )
    raise ConfigError(f"{shown!r}: {what}; a path that is meant so begins with ./")


def file_path(url: str) -> tuple[str, dict[str, str]]:
    """Return the absolute path and the options of a file store's URL, or of a bare path.

    ``lmdb://data/x.lmdb`` is relative, ``lmdb:///data/x.lmdb`` absolute, as fsspec reads them. Raises ConfigError.
    """
    scheme, path, options = split_options(url)
    if not path or "\0" in path:
        raise ConfigError(
            f"{redact(url)!r}: expected a path, as in {scheme or 'lmdb'}://data/train or {scheme or 'lmdb'}:///data/train"
        )
    return os.path.abspath(os.path.expanduser(path)), options


def split_options(url: str) -> tuple[str | None, str, dict[str, str]]:
    """Return the scheme, the path as it is written, and the options; a bare path has only the path. Raises ConfigError."""
    scheme, rest = split_scheme(url)
    path, _, query = rest.partition("?") if scheme else (rest, "", "")
    return scheme, path, _parse_query(query, url)


def file_url(scheme: str, path: str) -> str:
    """Return the URL of an absolute path."""
    return f"{scheme}://{path}"


def _parse_query(query: str, url: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for part in filter(None, query.split("&")):
        name, equals, value = part.partition("=")
        if not equals or not name:
            raise ConfigError(f"{redact(url)!r}: option {redact(part)!r} must read name=value")
        if name in options:
            raise ConfigError(f"{redact(url)!r}: option {name!r} is given twice")
        options[name] = unquote(value)
    return options
