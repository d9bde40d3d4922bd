"""Tests of the plug-in: the conformance kit, and a table that another tool wrote."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

import storeds
from storeds.testing import BackendTests


class TestSqlite(BackendTests):
    """All that `storeds.testing` asks of a backend and its writer."""

    @pytest.fixture
    def make_url(self, tmp_path: Path) -> Callable[[], str]:
        """Return a function that names a new, empty target at every call."""
        return lambda: f"sqlite://{tmp_path}/{uuid4().hex}.db"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Return a database that storeds did not write; it has gaps in its row ids and one row without a label."""
    path = tmp_path / "photos.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE photos (image BLOB, label INTEGER, name TEXT)")
        rows = [(bytes([n]), n if n != 7 else None, f"photo {n}") for n in range(10)]
        db.executemany("INSERT INTO photos VALUES (?, ?, ?)", rows)
        db.execute("DELETE FROM photos WHERE label IN (0, 4)")
    db.close()
    return path


def test_a_table_is_recognised_and_read(photos: Path) -> None:
    """Positions are dense whatever the row ids, and a NULL is a bad record, not a bad batch."""
    for url in (f"sqlite://{photos}", f"sqlite://{photos}?table=photos"):
        with storeds.open_backend(url) as backend:
            assert backend.meta.layout == "sqlite/photos"
            assert len(backend) == 8
            asked = backend.get_many([7, 0, 5, 0], ["label", "name"])
        expected = {"label": 1, "name": "photo 1"}
        assert asked[0] == {"label": 9, "name": "photo 9"}
        assert asked[1] == asked[3] == expected
        assert isinstance(asked[2], storeds.errors.RecordError)
        assert "record 5 of sqlite://" in str(asked[2])


def test_an_unknown_table_raises_an_error_that_lists_the_tables(photos: Path) -> None:
    with pytest.raises(storeds.errors.ConfigError, match="photos"):
        storeds.open_backend(f"sqlite://{photos}?table=phtos", layout="table")


def test_a_text_that_is_not_utf8_is_one_bad_record(photos: Path) -> None:
    """The other records of the batch are read."""
    with sqlite3.connect(photos) as db:
        db.execute("UPDATE photos SET name = CAST(x'ff41' AS TEXT) WHERE label = 2")
    db.close()
    with storeds.open_backend(f"sqlite://{photos}") as backend:
        good, bad = backend.get_many([0, 1], ["name"])
    assert good == {"name": "photo 1"}
    assert isinstance(bad, storeds.errors.RecordError)
    assert "'name' is not UTF-8" in str(bad)


def test_reading_a_table_that_changed_raises_unavailable_error(photos: Path) -> None:
    """Positions could mean other rows. Opening it again reads the new rows."""
    with storeds.open_backend(f"sqlite://{photos}") as backend:
        assert backend.get_many([0], ["label"]) == [{"label": 1}]
        with sqlite3.connect(photos) as db:
            db.execute("DELETE FROM photos WHERE label = 1")
        db.close()
        with pytest.raises(storeds.errors.UnavailableError, match="open it again"):
            backend.get_many([0], ["label"])
        with storeds.open_backend(f"sqlite://{photos}") as again:
            assert again.get_many([0], ["label"]) == [{"label": 2}]


def test_internal_tables_of_sqlite_are_ignored(tmp_path: Path) -> None:
    """AUTOINCREMENT makes one."""
    path = tmp_path / "numbered.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE photos (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT)")
        db.execute("INSERT INTO photos (name) VALUES ('one')")
    db.close()
    with storeds.open_backend(f"sqlite://{path}") as backend:
        assert backend.get_many([0]) == [{"id": 1, "name": "one"}]
