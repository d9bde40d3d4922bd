"""Converts `Meta` to and from its stored forms, a JSON text or a flat row, and verifies its checksum."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import xxhash

from storeds.errors import FormatError
from storeds.protocols import JSON, Field, Meta
from storeds.records.codec import canonical_json
from storeds.records.fields import fields_from_json, fields_to_json, split_fields, stored_fields

__all__ = [
    "NATIVE",
    "WRITTEN_BY",
    "Count",
    "meta_from_row",
    "meta_from_text",
    "meta_to_row",
    "meta_to_text",
    "new_build",
]


class Count(int):
    """An int below 2**64 whose pickle has a fixed size of 8 bytes."""

    def __reduce__(self) -> tuple[Callable[[bytes], Count], tuple[bytes]]:
        return _unpickle, (self.to_bytes(8, "little"),)


def _unpickle(data: bytes) -> Count:
    return Count(int.from_bytes(data, "little"))


NATIVE = "storeds/1"
WRITTEN_BY = "native stores are written by storeds.open_writer, `storeds pack` or `storeds convert`"


def new_build() -> str:
    """Return a random id for one published state of a store."""
    return secrets.token_hex(16)


def meta_to_text(meta: Meta, **extra: JSON) -> str:
    """Return canonical JSON of `meta` and `extra`, with their checksum, ``check``."""
    return canonical_json(_body(meta, extra))


def meta_from_text(text: str | bytes, url: str) -> tuple[Meta, Mapping[str, Any]]:
    """Return the `Meta` in `text` and the whole JSON object; raises FormatError if it is damaged."""
    return _verified(lambda: json.loads(text), url)


def meta_to_row(meta: Meta, **extra: JSON) -> dict[str, str | int]:
    """Return `meta` and `extra` as name → text or number, for engines whose users inspect it."""
    row = _body(meta, extra)
    return {name: value if isinstance(value, (str, int)) else canonical_json(value) for name, value in row.items()}


def meta_from_row(row: Mapping[str, Any], extra: Iterable[str], url: str) -> tuple[Meta, Mapping[str, Any]]:
    """Return the `Meta` of a row that `meta_to_row` returned, and all values; raises FormatError when it was damaged.

    Parameters
    ----------
    row : mapping
    extra : iterable of str
        The names of the extra values.
    url : str
        For messages.
    """

    def body() -> dict[str, Any]:
        texts = {name: json.loads(row[name]) if name in _JSON else row[name] for name in (*_ROW, *extra)}
        return {**texts, "count": int(row["count"])}

    return _verified(body, url)


def _body(meta: Meta, extra: Mapping[str, JSON]) -> dict[str, JSON]:
    body: dict[str, JSON] = {
        "attrs": dict(meta.attrs),
        "build": meta.build,
        "count": meta.count,
        "fields": fields_to_json(stored_fields(meta)),
        "id": meta.id,
        "layout": meta.layout,
        **extra,
    }
    return {**body, "check": _check(body)}


def _verified(parse: Callable[[], dict[str, Any]], url: str) -> tuple[Meta, Mapping[str, Any]]:
    try:
        body = parse()
        check = body.pop("check")
        declared, verdicts = split_fields(body["fields"])
        fields: Mapping[str, Field] = fields_from_json(declared)
        count = Count(body["count"])
        meta = Meta(body["id"], body["build"], count, body["layout"], fields, body["attrs"], verdicts)
        intact = check == _check(body)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise FormatError(
            f"{url}: the store's meta is unreadable ({type(error).__name__}: {error}); {_ADVICE}"
        ) from None
    if not intact:
        raise FormatError(f"{url}: the store's meta does not match its checksum; {_ADVICE}")
    if meta.layout != NATIVE:
        raise FormatError(
            f"{url}: layout {meta.layout!r} is newer than this storeds, which reads {NATIVE!r}; upgrade storeds"
        )
    return meta, body


def _check(body: Mapping[str, JSON]) -> str:
    """Return the xxh3-64 of canonical JSON, 16 hexadecimal digits."""
    return xxhash.xxh3_64_hexdigest(canonical_json(dict(body)).encode())


_ROW = ("attrs", "build", "check", "count", "fields", "id", "layout")
_JSON = ("attrs", "columns", "fields")
_ADVICE = "copy the store again from its source"
