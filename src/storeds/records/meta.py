"""Converts the description of a store to and from the text that engines keep."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any

import xxhash

from storeds.errors import FormatError
from storeds.protocols import JSON, Meta
from storeds.records.canonical_json import canonical_json
from storeds.records.fields import fields_from_json, fields_to_json

__all__ = ["NATIVE", "WRITTEN_BY", "meta_from_text", "meta_to_text", "new_build"]


NATIVE = "storeds/1"
WRITTEN_BY = "native stores are written by storeds.open_writer, `storeds pack` or `storeds convert`"


def new_build() -> str:
    """Return a random id for one published state of a store."""
    return secrets.token_hex(16)


def meta_to_text(meta: Meta, **extra: JSON) -> str:
    """Return canonical JSON of `meta` and `extra`, with their checksum, ``check``."""
    body: dict[str, JSON] = {
        "attrs": dict(meta.attrs),
        "build": meta.build,
        "count": meta.count,
        "fields": fields_to_json(meta.fields),
        "id": meta.id,
        "layout": meta.layout,
        **({} if meta.fast_crops is None else {"fast_crops": meta.fast_crops}),
        **extra,
    }
    return canonical_json({**body, "check": _meta_checksum(body)})


def meta_from_text(text: str | bytes, url: str) -> tuple[Meta, Mapping[str, Any]]:
    """Return the `Meta` in `text` and the whole JSON object; raises FormatError if it is damaged."""
    try:
        body = json.loads(text)
        check = body.pop("check")
        count, fast_crops = int(body["count"]), body.get("fast_crops")
        fields = fields_from_json(body["fields"])
        meta = Meta(body["id"], body["build"], count, body["layout"], fields, body["attrs"], fast_crops)
        intact = check == _meta_checksum(body)
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


def _meta_checksum(body: Mapping[str, JSON]) -> str:
    """Return the xxh3-64 of canonical JSON, 16 hexadecimal digits."""
    return xxhash.xxh3_64_hexdigest(canonical_json(dict(body)).encode())


_ADVICE = "copy the store again from its source"
