"""Reads a source of `pack` as `pack` reads it, without a store."""

from __future__ import annotations

from typing import Any

from storeds.ops.packing.rows import Bad, BadItem, Row, Rows
from storeds.ops.packing.sources import open_source
from storeds.protocols import Record

__all__ = ["Source"]


class Source:
    """Everything that a source gives.

    Parameters
    ----------
    source, **options
        As for `open_source`.

    Attributes
    ----------
    rows : Rows
    records : list of dict
        The good ones.
    bad : list of str
        The others, as `pack` reports them.
    """

    def __init__(self, source: Any, **options: Any) -> None:
        self.rows: Rows = open_source(source, **options)
        self.records: list[Record] = []
        self.bad: list[str] = []
        for item in self.rows.items(0):
            if isinstance(item, Row):
                try:
                    self.records.append(self.rows.read(item))
                except BadItem as error:
                    self.bad.append(str(Bad(item.name, str(error))))
            else:
                self.bad.append(str(item))

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of each field."""
        return {name: field.kind for name, field in self.rows.fields.items()}

    def column(self, name: str) -> list[Any]:
        """Return one field of all good records."""
        return [record[name] for record in self.records]
