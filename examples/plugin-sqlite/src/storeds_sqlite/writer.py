"""The writer: builds a database beside the target, and makes it the target in one step."""

import json
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from storeds import plugins
from storeds.errors import ConfigError, StoreExistsError
from storeds.protocols import JSON, Meta

# The lock is the connection's until it closes, or its process dies.
_BEGIN = """PRAGMA locking_mode=EXCLUSIVE; BEGIN EXCLUSIVE;
CREATE TABLE IF NOT EXISTS records (position INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS storeds_meta (name TEXT PRIMARY KEY, text TEXT NOT NULL); COMMIT;"""


class SqliteWriter(plugins.StoreWriter):
    """Writes ``sqlite://`` stores; `plugins.StoreWriter` checks records, packs them and counts."""

    engine_errors = (OSError, sqlite3.Error)

    def __init__(
        self, url: str, fields: Mapping[str, Any], *, overwrite: bool, resume: bool, plan: JSON = None, **how: Any
    ) -> None:
        path, in_url = plugins.file_path(url)
        commit_every, check = how.pop("commit_every", plugins.COMMIT_EVERY), how.pop("check", True)
        super().__init__(f"sqlite://{path}", fields, commit_every, check=check)
        plugins.parse_options(plugins.BackendOptions, in_url, how, url)
        self._target, self._overwrite = Path(path), overwrite
        self._building = self._target.with_name(f".{self._target.name}.partial")
        if self._target.exists() and not overwrite:
            raise StoreExistsError(f"{self.url} exists; pass overwrite=True to replace it, or choose another path")
        self._target.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(self._building, timeout=0)
        try:
            self._begin(json.dumps([plugins.fields_to_json(self.fields), plan]), overwrite, resume)
        except BaseException:
            self._db.close()
            raise

    def _begin(self, plan: str, overwrite: bool, resume: bool) -> None:
        try:
            self._db.executescript(_BEGIN)
        except sqlite3.OperationalError as error:
            raise StoreExistsError(f"{self.url} cannot be begun, as by a second writer: {error}") from None
        left = dict(self._db.execute("SELECT name, text FROM storeds_meta").fetchall())
        if left and not (resume or overwrite):
            raise StoreExistsError(f"{self.url} has an interrupted write; pass resume=True or overwrite=True")
        if left and resume and left["plan"] != plan:
            raise ConfigError(f"{self.url} cannot be resumed: it was begun with {left['plan']}, now it is {plan}")
        with self._db:
            self._db.execute("DELETE FROM records WHERE ?", [not resume])
            self._db.execute("DELETE FROM storeds_meta WHERE name = 'meta' OR ?", [not resume])
            self._places = plugins.Places.of(left["salt"], 0, self.url) if left and resume else plugins.Places()
            self._put(plan=plan, salt=self._places.text)
        self.note = json.loads(left.get("note", "null")) if resume else None
        bodies = self._db.execute("SELECT body FROM records ORDER BY position")
        checksums = [plugins.checksum(body[:-8]) for (body,) in bodies]
        self._resume_from(len(checksums), checksums)

    def _put(self, **texts: str) -> None:
        self._db.executemany("INSERT OR REPLACE INTO storeds_meta VALUES (?, ?)", texts.items())

    def _commit(self, batch: list[plugins.EncodedRecord], first: int) -> None:
        # The seal behind each record binds it to its position and to this store.
        rows = [(at, each.packed + self._places.seal(each.digest, at)) for at, each in enumerate(batch, first)]
        with self._db:
            self._db.executemany("INSERT INTO records VALUES (?, ?)", rows)

    def _save_note(self, note: JSON) -> None:
        with self._db:
            self._put(note=json.dumps(note))

    def _publish(self, meta: Meta) -> None:
        with self._db:
            self._put(meta=plugins.meta_to_text(meta, salt=self._places.text))
        # Unlike a rename, a link replaces nothing that appeared meanwhile.
        (os.replace if self._overwrite else os.link)(self._building, self._target)
        self._discard()

    def _discard(self) -> None:
        self._building.unlink(missing_ok=True)
        self._building.with_name(f"{self._building.name}-journal").unlink(missing_ok=True)
        self._db.close()

    def _suspend(self) -> None:
        self._db.close()
