"""The sink: builds a database beside the target, and makes it the target in one step."""

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from storeds import plugins
from storeds.errors import StoreExistsError
from storeds.protocols import Array

# The lock is the connection's until it closes, or its process dies.
_BEGIN = """PRAGMA locking_mode=EXCLUSIVE; BEGIN EXCLUSIVE;
CREATE TABLE IF NOT EXISTS records (position INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS storeds_meta (name TEXT PRIMARY KEY, text TEXT NOT NULL); COMMIT;"""


class SqliteSink:
    """Keeps the packed records of a ``sqlite://`` store; `plugins.Sink` describes its methods."""

    errors: tuple[type[Exception], ...] = (OSError, sqlite3.Error)

    def __init__(self, path: str) -> None:
        self.url = f"sqlite://{path}"
        self._target = Path(path)
        self._building = self._target.with_name(f".{self._target.name}.partial")
        self._db: sqlite3.Connection | None = None

    def exists(self) -> bool:
        """Whether a file is at the target."""
        return self._target.exists()

    def begin(self) -> bytes | None:
        """Lock the database of an interrupted write, or a new one, and return its note."""
        self._target.parent.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(self._building, timeout=0)
        try:
            db.executescript(_BEGIN)
        except sqlite3.OperationalError as error:
            db.close()
            raise StoreExistsError(f"{self.url} cannot be begun, as by a second writer: {error}") from None
        self._db = db
        with db:
            db.execute("DELETE FROM storeds_meta WHERE name = 'meta'")  # of a publish that failed
        row = db.execute("SELECT text FROM storeds_meta WHERE name = 'note'").fetchone()
        return None if row is None else row[0].encode()

    def put(self, first: int, packed: Sequence[bytes], note: bytes) -> None:
        """Insert records and note in one transaction."""
        with self._open() as db:
            db.executemany("INSERT OR REPLACE INTO records VALUES (?, ?)", enumerate(packed, first))
            db.execute("INSERT OR REPLACE INTO storeds_meta VALUES ('note', ?)", [note.decode()])

    def scan(self) -> Iterator[bytes]:
        """Yield the records in order."""
        return (row[0] for row in self._open().execute("SELECT body FROM records ORDER BY position"))

    def finish(self, columns: Mapping[str, Array], meta: str, *, replace: bool) -> None:
        """Add the meta, and move the database to the target. Columns are read from the records."""
        with self._open() as db:
            db.execute("INSERT OR REPLACE INTO storeds_meta VALUES ('meta', ?)", [meta])
        try:
            # Unlike a rename, a link replaces nothing that appeared meanwhile.
            (os.replace if replace else os.link)(self._building, self._target)
        except FileExistsError:
            raise plugins.appeared(self.url) from None
        self._building.unlink(missing_ok=True)

    def drop(self) -> None:
        """Delete the records and the note."""
        with self._open() as db:
            db.execute("DELETE FROM records")
            db.execute("DELETE FROM storeds_meta")

    def close(self) -> None:
        """Release the lock. A database without a note goes: its write was dropped."""
        if self._db is not None:
            db, self._db = self._db, None
            is_dropped = not db.execute("SELECT 1 FROM storeds_meta").fetchall()
            db.close()
            if is_dropped:
                self._building.unlink(missing_ok=True)

    def explain(self, error: Exception) -> str:
        """Return SQLite's message."""
        return str(error)

    def _open(self) -> sqlite3.Connection:
        assert self._db is not None
        return self._db
