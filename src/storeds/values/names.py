"""Names fields: by the name that a value has where it lies, or by its kind if it has none."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence

from storeds.protocols import Field

__all__ = ["field_name", "field_names", "names_for"]

_LONGEST = 90  # characters; a field name may have 100, and a number may follow
_VALID = re.compile(r"[a-z][a-z0-9_]{0,89}")
_BY_KIND = {"image": "image", "int": "label", "str": "text", "array": "array", "float": "value", "bool": "flag"}


def field_name(text: str) -> str:
    """Return a text as the name of a field: the text itself if it is one, else in lower case, with ``_`` for other characters.

    ``Score (raw)`` becomes ``score_raw``, ``3d`` becomes ``f3d``, and a text without Latin letters and digits ``field``.
    """
    if _VALID.fullmatch(text):
        return text
    name = re.sub(r"[^a-z0-9_]+", "_", text.lower()).strip("_")[:_LONGEST] or "field"
    return name if name[0].isalpha() else f"f{name}"


def field_names(labels: Sequence[str], taken: Collection[str] = ()) -> list[str]:
    """Return a field name of its own for each label: the label itself if it is a free name, else `field_name` and a number.

    No label takes the name that is exactly another one: of ``T`` and ``t``, the first becomes ``t_2``.
    """
    used, names = set(taken), [""] * len(labels)
    for at in sorted(range(len(labels)), key=lambda at: field_name(labels[at]) != labels[at]):
        plain = unique = field_name(labels[at])
        number = 2
        while unique in used:
            unique, number = f"{plain}_{number}", number + 1
        used.add(unique)
        names[at] = unique
    return names


def names_for(fields: Sequence[Field], videos: Sequence[bool] = ()) -> list[str]:
    """Return field names by kind: image, label, text, array, value, flag, json, bytes; numbered if a kind occurs twice.

    `videos` says for each field whether all its values are encoded videos; such a field is called video.
    """
    bases = [_BY_KIND.get(field.kind, field.kind) for field in fields]
    bases = ["video" if is_clip else base for base, is_clip in zip(bases, videos or [False] * len(bases), strict=True)]
    several, seen = Counter(bases), Counter[str]()
    out = []
    for base in bases:
        out.append(f"{base}{seen[base]}" if several[base] > 1 else base)
        seen[base] += 1
    return out
