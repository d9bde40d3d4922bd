"""Make stores for tests."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import storeds

__all__ = ["make_store"]


def make_store(
    fields: Mapping[str, Any],
    records: Iterable[Mapping[str, Any]],
    url: str | Path | None = None,
    *,
    attrs: Mapping[str, Any] | None = None,
    **options: Any,
) -> str:
    """Write a store of these records, a new one in memory if `url` is None; `options` go to the writer. Return its URL."""
    target = f"memory://store-{secrets.token_hex(8)}" if url is None else url
    with storeds.open_writer(target, fields, **options) as writer:
        writer.append(map(dict, records))
        writer.publish(attrs)
    return str(target)
