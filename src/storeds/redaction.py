"""Hides the secrets of URLs: the password, and options with a name such as ``token``. Nothing else holds secrets."""

from __future__ import annotations

import difflib
import functools
import re

__all__ = ["is_secret", "redact", "redact_message"]

_OPTION = re.compile(r"(?<=[?&;])([\w.-]++)[=:]++(?!\*{3})[^&;]++")
_IN_PROSE = re.compile(r"\A([\w.-]++)=++(?!\*{3})[^&;]++")  # a word of a message
_SECRET = re.compile("pass|pwd|secret|token|credential|apikey|accesskey|mechanismproperties", re.IGNORECASE)
_NAMES = ("password", "passphrase", "secret", "token", "credential", "apikey", "accesskey", "authmechanismproperties")


def redact(url: str) -> str:
    """Return a URL with its password and other secrets replaced by ``***``.

    What lies between the first colon after the scheme and the last @ may be a password, also where the scheme is
    missing or misspelt. A text of several URLs is hidden from the first password to the last one.
    """
    while True:  # hiding an option with an @ may show that an earlier @ ends a password
        password = password_of(url)
        shown = f"{url[: password[0]]}***{url[password[1] :]}" if password else url
        shown = _OPTION.sub(_hidden, shown)
        if shown == url:
            return url
        url = shown


def redact_message(text: str) -> str:
    """Return `text` with the secrets of any URL in it replaced by ``***``; a URL ends at a blank."""
    if "@" not in text and "=" not in text:
        return text
    return re.sub(r"\S+", lambda word: _IN_PROSE.sub(_hidden, redact(word[0])), text)


def _hidden(option: re.Match[str]) -> str:
    return f"{option[1]}=***" if is_secret(option[1]) else option[0]


def password_of(url: str) -> tuple[int, int] | None:
    """Return where the password of a URL begins and ends, or None without one."""
    end = url.rfind("@")
    slashes = url.find("://", 0, max(end, 0))
    start = url.find(":", slashes + 3 if slashes >= 0 else 0, max(end, 0)) + 1
    return (start, end) if 0 < start < end else None


@functools.lru_cache(1000)
def is_secret(name: str) -> bool:
    """Return whether the name of an option, or a word in it, is that of a secret, perhaps misspelt."""
    name = name[:80]
    whole = re.sub(r"[\W_]", "", name)
    words = (whole, *re.findall("[A-Z]?[a-z]+", name))
    return _SECRET.search(whole) is not None or any(
        difflib.get_close_matches(word.lower(), _NAMES, 1, 0.84) for word in words
    )
