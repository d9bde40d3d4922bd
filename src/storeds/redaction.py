"""Hides passwords, tokens and other secrets in URLs and messages."""

from __future__ import annotations

import difflib
import functools
import re

__all__ = ["redact_message"]


# A text that begins with user and password. A drive, as in C:/ and C:\, is not a user. After a blank only if a host and a
# path follow: "key: value @x" is prose.
_USER_FIRST = re.compile(r"\s*[^\s/:?]*:(?:(?![/\\\s])|(?=\s.*@[^\s@/]+/))", re.DOTALL)
# Precedes user and password, in misspelt URLs too: mongo db://, mongodb//, mongodb:/, mongodb/. A first folder that begins
# like mongodb counts as a misspelt scheme.
_BEFORE_USER = re.compile(r":/+|//+|\A[^\w/]*m\w{0,3}o\w{0,3}d?b\w{0,2}(?:\W?s\w{0,3})?/", re.IGNORECASE)
# The name of an option and what its value may consist of: in a URL, which may have blanks, and in any text. A value that
# is hidden already is none. Possessive, so that a search takes linear time.
_OPTION_OF_URL = re.compile(r"[?&;]([\w.-]++)[=:]++\s*+(?!\*{3})(?=[^&;])"), re.compile("[^&;]+")
_OPTION = re.compile(r"[?&;\s]([\w.-]++)=(?!\*{3})(?=[^&;\s])"), re.compile(r"[^&;\s]+")
_HIDDEN = re.compile("pass|pwd|secret|token|credential|apikey")
_NAMES = (
    *("password", "passwd", "pwd", "pw", "passphrase", "secret", "token", "credential"),
    *("apikey", "accesskey", "secretkey", "authmechanismproperties"),
)


def redact(url: str) -> str:
    """Return a URL with passwords, tokens and other secrets in it replaced by ``***``.

    Works for secrets with blanks, and for URLs with a missing slash or a missing or misspelt scheme. If the text may hold
    several URLs, everything from the start of the first password to the end of the last one is hidden.
    """
    hidden = redact_message(_without_options(_without_password(url), *_OPTION_OF_URL))
    return hidden if hidden == url else redact(hidden)  # what is hidden may have concealed where another secret begins


def redact_message(text: str) -> str:
    """Return `text` with the secrets of any URL in it replaced by ``***``; a secret ends at a blank."""
    words = re.sub(r"\S+", lambda word: _without_password(word[0]), text) if "@" in text else text
    hidden = _without_options(words, *_OPTION)
    return hidden if hidden == text else redact_message(hidden)


def _without_password(url: str) -> str:
    start = password_start(url)
    return url if start is None else f"{url[:start]}***{url[url.rindex('@') :]}"


def password_start(url: str) -> int | None:
    """Return the index where the password of a URL begins, or None without one; it ends at the last @."""
    at = url.rfind("@")
    if at < 0:
        return None
    user = _USER_FIRST.match(url)
    if user:
        return user.end() if user.end() < at else None
    slashes = _BEFORE_USER.search(url, 0, at)
    colon = url.find(":", slashes.end(), at) if slashes else -1
    if not slashes or not 0 <= colon < at - 1:
        return None
    is_file = url[: slashes.start()].lower().endswith(("lmdb", "hdf5"))  # file names may contain both
    return None if is_file and "/" in url[slashes.end() : colon] else colon + 1


def _without_options(text: str, option: re.Pattern[str], value: re.Pattern[str]) -> str:
    """Hide the values of the options whose names resemble that of a secret."""
    shown, end = [], 0
    for found in option.finditer(text):
        if found.start() >= end and _is_secret(found[1]):  # before `end`, it is part of a hidden value
            shown += [text[end : found.end()], "***"]
            end = value.search(text, found.end()).end()  # type: ignore[union-attr]  # the option has a value
    return "".join([*shown, text[end:]])


@functools.lru_cache(1000)
def _is_secret(name: str) -> bool:
    """Return whether the name of an option, or a word in it, is that of a secret, perhaps misspelt."""
    name = name[:80]
    whole = re.sub(r"[\W_]", "", name).lower()
    words = [whole, *(word.lower() for word in re.findall(r"[A-Z]?[a-z]+", name))]
    return bool(_HIDDEN.search(whole)) or any(difflib.get_close_matches(word, _NAMES, 1, 0.84) for word in words)


def is_like_url(text: str) -> bool:
    """Return whether a text that should be a name has characters of a URL with secrets, so messages must not show it."""
    return "//" in text or not set("@=?&;").isdisjoint(text)
