"""Reads store URLs and takes the secrets out of them before anyone sees them."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote

from storeds.errors import ConfigError

__all__ = ["file_path", "file_url", "redact", "split_options", "split_scheme"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
# Greedy up to the *last* @: a password that should have been percent-encoded may hold @, / and ? itself. A user's
# name may hold @ and, where the path is no file's, / too.
_USERINFO = re.compile(r"((?:mongodb(?:\+srv)?://)[^\s:]*|[A-Za-z][A-Za-z0-9+.-]*://[^\s:/]*):\S*@", re.IGNORECASE)
_SECRET_OPTION = re.compile(
    r"([?&;\s](?:[\w.-]*(?:pass|pwd|secret|token|credential|apikey)[\w.-]*|authMechanismProperties)=)[^&;\s]+",
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """Return `text` with passwords, tokens and other secrets of any URL in it replaced by ``***``."""
    return _SECRET_OPTION.sub(r"\1***", _USERINFO.sub(r"\1:***@", text))


def split_scheme(url: str) -> tuple[str | None, str]:
    """Return (lower-case scheme, the rest); the scheme of a bare path is None."""
    match = _SCHEME.match(url)
    return (match[1].lower(), url[match.end() :]) if match else (None, url)


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
