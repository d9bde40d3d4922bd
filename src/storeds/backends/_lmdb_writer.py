"""Writes native LMDB stores: in append order, in a map grown from small, compacted and stamped at publish."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import xxhash

from storeds._columns import SCALARS
from storeds._lmdb_file import stamp_lmdb_file
from storeds._meta import meta_to_text
from storeds._staging import Staging
from storeds._url import file_path, file_url
from storeds._writer import COMMIT_EVERY, Sealed, StoreWriter
from storeds.backends.base import parse_options
from storeds.backends.lmdb import COLUMNS, META, RECORDS, LmdbOptions, position_key, text_offsets_key
from storeds.fields import fields_to_json
from storeds.protocols import JSON, Meta
from storeds.record import CHECKSUM, canonical_json

__all__ = ["LmdbWriter"]

_PARTS = b"parts"  # columns of each committed batch; gone from the published file
_NOTE = b"note"  # beside them; their keys all have a slash
_FIRST_MAP = 1 << 20


class LmdbWriter(StoreWriter):
    """The `Writer` of ``lmdb://``; see `storeds.open_writer`."""

    engine_errors = (OSError, lmdb.Error)

    def __init__(
        self,
        url: str,
        fields: Mapping[str, Any],
        *,
        overwrite: bool = False,
        resume: bool = False,
        commit_every: int = COMMIT_EVERY,
        plan: JSON = None,
        **options: Any,
    ) -> None:
        path, in_url = file_path(url)
        parse_options(LmdbOptions, in_url, options, url)
        super().__init__(file_url("lmdb", path), fields, commit_every)
        whole = {"kind": "lmdb", "fields": fields_to_json(self.fields), "plan": plan}
        self._staging = Staging(path, self.url, whole, overwrite=overwrite, resume=resume)
        try:
            self._open(self._staging.folder / "building.mdb")
        except BaseException:
            self._staging.release()
            raise

    def _open(self, file: Path) -> None:
        size = file.stat().st_size if file.exists() else 0
        self._env = lmdb.open(
            str(file), subdir=False, lock=False, meminit=False, max_dbs=4, map_size=max(_FIRST_MAP, 2 * size)
        )
        names = (RECORDS, COLUMNS, META, _PARTS)
        self._records, self._columns, self._meta_db, self._parts = (self._env.open_db(name) for name in names)
        with self._env.begin(db=self._meta_db) as txn:
            publishing = txn.get(META) is not None
        if publishing:
            self._write(self._take_back_columns)
        with self._env.begin() as txn:
            count = txn.stat(self._records)["entries"]
            self._resume_from(count, list(self._read_parts(txn, CHECKSUM)))
            self.note = json.loads(txn.get(_NOTE, db=self._parts) or b"null")

    def _commit(self, batch: list[Sealed], first: int) -> None:
        self._write(lambda txn: self._put_batch(txn, batch, first))

    def _write(self, body: Callable[[lmdb.Transaction], object]) -> None:
        # A full map drops the whole transaction, so the whole batch is replayed in a larger one (tensorpack#1562).
        while True:
            try:
                with self._env.begin(write=True) as txn:
                    body(txn)
                return
            except lmdb.MapFullError:
                self._env.set_mapsize(2 * self._env.info()["map_size"])

    def _put_batch(self, txn: lmdb.Transaction, batch: list[Sealed], first: int) -> None:
        for position, sealed in enumerate(batch, first):
            value = self._codec.seal(sealed.packed, sealed.digest)
            txn.put(position_key(position), value, db=self._records, append=True)
        self._put_part(txn, CHECKSUM, first, b"".join(sealed.digest for sealed in batch))
        for name, field in self.fields.items():
            values = [sealed.stored[name] for sealed in batch]
            if field.is_scalar:
                self._put_part(txn, name, first, np.array(values, SCALARS[field.kind]).tobytes())
            elif field.kind == "str":
                texts = [value.encode() for value in values]
                self._put_part(txn, name, first, b"".join(texts))
                lengths = np.fromiter(map(len, texts), "<i8", len(texts))
                self._put_part(txn, f"{name}.lengths", first, lengths.tobytes())

    def _put_part(self, txn: lmdb.Transaction, name: str, first: int, data: bytes) -> None:
        txn.put(f"{name}/".encode() + position_key(first), data, db=self._parts)

    def _read_parts(self, txn: lmdb.Transaction, name: str) -> Iterator[bytes]:
        prefix = f"{name}/".encode()
        cursor = txn.cursor(self._parts)
        if cursor.set_range(prefix):
            pairs = itertools.takewhile(lambda pair: bytes(pair[0]).startswith(prefix), cursor.iternext())
            yield from (bytes(value) for _, value in pairs)

    def _save_note(self, note: JSON) -> None:
        self._write(lambda txn: txn.put(_NOTE, canonical_json(note).encode(), db=self._parts))

    def _publish(self, meta: Meta) -> None:
        self._write(lambda txn: self._put_columns(txn, meta))
        built = self._staging.folder / "compact.mdb"
        built.unlink(missing_ok=True)
        self._env.copy(str(built), compact=True)
        self._env.close()
        stamp_lmdb_file(str(built))
        self._staging.publish(built)

    def _put_columns(self, txn: lmdb.Transaction, meta: Meta) -> None:
        checksums: dict[str, JSON] = {}
        for name, field in self.fields.items():
            columns = {}
            if field.is_scalar or field.kind == "str":
                columns[name.encode()] = b"".join(self._read_parts(txn, name))
            if field.kind == "str":
                lengths = np.frombuffer(b"".join(self._read_parts(txn, f"{name}.lengths")), "<i8")
                offsets = np.concatenate((np.zeros(1, "<i8"), np.cumsum(lengths, dtype="<i8")))
                columns[text_offsets_key(name)] = offsets.tobytes()
            for key, data in columns.items():
                txn.put(key, data, db=self._columns)
                checksums[key.decode()] = xxhash.xxh3_64_hexdigest(data)
        txn.put(META, meta_to_text(meta, columns=checksums).encode(), db=self._meta_db)
        txn.drop(self._parts, delete=True)

    def _take_back_columns(self, txn: lmdb.Transaction) -> None:
        """Undo `_put_columns`: publishing failed after it, and now the writer goes on."""
        digests = (bytes(value[-8:]) for _, value in txn.cursor(self._records))
        self._put_part(txn, CHECKSUM, 0, b"".join(digests))
        columns = {bytes(key).decode(): bytes(data) for key, data in txn.cursor(self._columns)}
        for name, field in self.fields.items():
            if field.is_scalar or field.kind == "str":
                self._put_part(txn, name, 0, columns[name])
            if field.kind == "str":
                offsets = np.frombuffer(columns[text_offsets_key(name).decode()], "<i8")
                self._put_part(txn, f"{name}.lengths", 0, np.diff(offsets).tobytes())
        txn.drop(self._columns, delete=False)
        txn.delete(META, db=self._meta_db)

    def _discard(self) -> None:
        self._env.close()
        self._staging.discard()

    def _suspend(self) -> None:
        self._env.close()
        self._staging.release()
