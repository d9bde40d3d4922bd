"""Records as users wrote them: without the fields in which a native store holds verdicts on pictures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from storeds.protocols import Field, Meta

__all__ = ["declared", "unjudged"]


def unjudged(records: Iterable[Any]) -> list[Any]:
    """Return records, or errors, without the verdicts on their pictures."""
    return [_unjudged(record) if isinstance(record, dict) else record for record in records]


def _unjudged(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if not name.endswith(("_finding", "_recovered"))}


def declared(meta: Meta) -> dict[str, Field]:
    """Return the fields of a store without those of verdicts."""
    return _unjudged(dict(meta.fields))
