"""Hides the secrets of URLs: the password, and options with a name such as ``token``. Nothing else holds secrets."""

from __future__ import annotations

import re

__all__ = ["is_secret", "redact", "redact_message"]

_OPTION = re.compile(r"(?<=[?&;])([\w.-]++)[=:]++(?!\*{3})[^&;]++")
_SECRET = re.compile("pass|pwd|secret|token|credential|apikey|accesskey|mechanismproperties", re.IGNORECASE)


def redact(url: str) -> str:
    """Return a URL with its password and other secrets replaced by ``***``.

    What lies between the first colon after the scheme and the last @ may be a password, also where the scheme is
    missing or misspelt. A text of several URLs is hidden from the first password to the last one.
    """
    password = password_of(url)
    shown = f"{url[: password[0]]}***{url[password[1] :]}" if password else url
    return _OPTION.sub(lambda option: f"{option[1]}=***" if is_secret(option[1]) else option[0], shown)


def redact_message(text: str) -> str:
    """Return `text` with the secrets of any URL in it replaced by ``***``; a URL ends at a blank."""
    return re.sub(r"\S+", lambda word: redact(word[0]), text) if "@" in text or "=" in text else text


def password_of(url: str) -> tuple[int, int] | None:
    """Return where the password of a URL begins and ends, or None without one."""
    end = url.rfind("@")
    slashes = url.find("://", 0, max(end, 0))
    start = url.find(":", slashes + 3 if slashes >= 0 else 0, max(end, 0)) + 1
    return (start, end) if 0 < start < end else None


def is_secret(name: str) -> bool:
    """Return whether the name of an option is that of a secret."""
    return _SECRET.search(re.sub(r"[\W_]", "", name)) is not None
