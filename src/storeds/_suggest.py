"""Says, for a name that does not exist, which names do and which is nearest."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["suggest"]

_SHOWN = 20
_COMPARED = 1000


def suggest(name: object, known: Iterable[str], what: str) -> str:
    """Return for example ``"did you mean 'label'? The fields are image, label"``."""
    names = list(known)
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    listing = f"the {what} are {shown}" if names else f"there are no {what}"
    near = difflib.get_close_matches(str(name), names, n=1) if len(names) <= _COMPARED else []
    return f"did you mean {near[0]!r}? {listing[0].upper()}{listing[1:]}" if near else listing
