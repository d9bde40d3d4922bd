"""Sources to pack, the command line, and the records of a store as lmdb and msgspec alone read them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import lmdb
import msgspec
from typer.testing import CliRunner

import storeds
from _verdicts import unjudged
from storeds.cli import app
from storeds.formats import Bad, BadItem, Row, Rows, open_source
from storeds.protocols import Record


def storeds_command(*arguments: object, code: int = 0) -> str:
    """Run the command line; return what it prints."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


def storeds_json(*arguments: object, code: int = 0) -> Any:
    """Run the command line with ``--json``; return what it prints as an object."""
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def interrupt(*_: object) -> None:
    """Press Ctrl-C: a `progress=` that ends an operation."""
    raise KeyboardInterrupt


def records_of(url: str | Path, *fields: str) -> list[Any]:
    """Return the records of a store, with these fields, or with all that its user declared."""
    with storeds.open_backend(url) as backend:
        records = backend.get_many(range(len(backend)), fields or None)
    return records if fields else unjudged(records)


def verdicts_of(url: str | Path) -> dict[str, tuple[str, str]]:
    """Return key → the finding and the share that are stored with a picture; the share as text, so that NaN is equal."""
    found = records_of(url, "key", "image_finding", "image_recovered")
    return {row["key"]: (row["image_finding"], str(row["image_recovered"])) for row in found}


def stored_records(path: Path) -> list[dict[str, Any]]:
    """Return the records of a native LMDB store, read without storeds."""
    # A copy, because this process may have the store itself open.
    copied = shutil.copy(path, path.with_name(f"{path.name}.copied"))
    with lmdb.open(str(copied), subdir=False, readonly=True, lock=False, max_dbs=4) as environment:
        records = environment.open_db(b"records", create=False)
        with environment.begin(records) as transaction:
            return [msgspec.msgpack.decode(value[:-8]) for _, value in transaction.cursor()]  # a seal ends each


class Source:
    """Everything that a source of `pack` gives, read as `pack` reads it, without a store.

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
