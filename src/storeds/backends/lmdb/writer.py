"""Writes native LMDB stores: in append order, in a map grown from small, compacted where need be, stamped at publish."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import lmdb
import numpy as np
import xxhash

from storeds._utils.locations import StoreURL, file_path, file_url
from storeds.backends.base import parse_options
from storeds.backends.lmdb.backend import (
    COLUMNS,
    META,
    RECORDS,
    LmdbOptions,
    position_key,
    stamp_lmdb_file,
    text_offsets_key,
)
from storeds.backends.staging import Staging, kept_places, sync_path
from storeds.backends.writer import COMMIT_EVERY, EncodedRecord, StoreWriter
from storeds.protocols import JSON, Meta
from storeds.records.columns import SCALARS
from storeds.records.fields import canonical_json, fields_to_json, meta_to_text

__all__ = ["LmdbWriter"]

_DIGESTS = "_xxh3"  # among the parts: the records' checksums
_PARTS = b"parts"  # columns of each committed batch; gone from the published file
_NOTE = b"note"  # beside them; their keys all have a slash
_DATABASES = (RECORDS, COLUMNS, META, _PARTS)
_FIRST_MAP = 1 << 20
_LOOSE = 1 / 32  # share of free pages up to which a file is published as it is
_HEAP = (32 << 20) - (1 << 13)  # just below the largest block that glibc learns from
_STAMP = 24  # bytes, at the end of the first page
# What a transaction may need beyond its values: pages of the trees that it copies; a page and a header for each value.
_TREE_PAGES, _HEADER = 64, 128


class LmdbWriter(StoreWriter):
    """The `Writer` of ``lmdb://``; see `storeds.open_writer`."""

    engine_errors: ClassVar[tuple[type[Exception], ...]] = (OSError, lmdb.Error)
    part_bytes: ClassVar[int] = 1 << 20

    def __init__(
        self,
        url: str | StoreURL,
        fields: Mapping[str, Any],
        *,
        overwrite: bool = False,
        resume: bool = False,
        commit_every: int = COMMIT_EVERY,
        check: bool = True,
        plan: JSON = None,
        **options: Any,
    ) -> None:
        path, in_url = file_path(url)
        parse_options(LmdbOptions, in_url, options, url)
        super().__init__(file_url("lmdb", path), fields, commit_every, check=check)
        whole = {"kind": "lmdb", "fields": fields_to_json(self.fields), "plan": plan}
        self._staging = Staging(path, self.url, whole, overwrite=overwrite, resume=resume)
        self._building = self._staging.folder / "building.mdb"
        self._txn: lmdb.Transaction | None = None
        self._room = 0
        with self._opening():
            self._places = kept_places(self._staging.folder)
            self._staging.separate(self._building)
            self._open(self._building)

    def _open(self, file: Path) -> None:
        # LMDB frees a batch's pages at once, which glibc would give back to the kernel, to fault them in for the next
        # batch: a tenth of the time. Freeing one large block, never touched, teaches it to keep them (see mallopt(3)).
        bytes(_HEAP)
        if not file.exists():
            self._create(file)
        self._env = _open_env(file)
        self._page = self._env.stat()["psize"]
        self._records, self._columns, self._meta_db, self._parts = (self._env.open_db(name) for name in _DATABASES)
        with self._env.begin(db=self._meta_db) as txn:
            publishing = txn.get(META) is not None
        if publishing:
            self._write(self._take_back_columns)
        with self._env.begin() as txn:
            count = txn.stat(self._records)["entries"]
            self._resume_from(count, list(self._read_parts(txn, _DIGESTS)))
            self.note = json.loads(txn.get(_NOTE, db=self._parts) or b"null")

    def _create(self, file: Path) -> None:
        """Make `file` an empty environment in one step: a death in the middle would leave a file that LMDB cannot open."""
        fresh = file.with_name(f"{file.name}.fresh")
        fresh.unlink(missing_ok=True)
        with contextlib.closing(_open_env(fresh)) as env:
            for name in _DATABASES:
                env.open_db(name)
        os.replace(fresh, file)
        sync_path(file.parent)

    def _reason(self, error: BaseException) -> str:
        needed = self._batch_bytes + self._part_bytes
        return self._staging.explain(error, needed or _size(self._building))

    def _commit(self, batch: list[EncodedRecord], first: int) -> None:
        if batch:
            self._write_part(batch, first)
        self._end()

    def _write_part(self, part: list[EncodedRecord], first: int) -> None:
        rows = dict(self._part_rows(part, first))
        seal = self._places.seal
        items = [
            (position_key(position), sealed.packed + seal(sealed.digest, position))
            for position, sealed in enumerate(part, first)
        ]
        room = self._page + _HEADER
        needed = _TREE_PAGES * self._page + sum(len(value) + room for _, value in (*items, *rows.items()))
        txn = self._begin(needed)
        with txn.cursor(self._records) as cursor:
            _, added = cursor.putmulti(items, append=True)
        if added != len(part):
            raise lmdb.Error(f"{len(part) - added} of the records from {first} on are there already")
        for key, data in rows.items():
            txn.put(key, data, db=self._parts)

    def _begin(self, needed: int) -> lmdb.Transaction:
        """Return the open transaction, or another in a larger map where `needed` bytes do not fit in this one."""
        # A full map would drop the whole transaction (tensorpack#1562).
        if needed > self._room:
            self._end()
        if self._txn is None:
            info = self._env.info()
            used, size = (info["last_pgno"] + 1) * self._page, info["map_size"]
            if size - used < needed:
                while size - used < needed:
                    size *= 2
                self._env.set_mapsize(size)
            self._room, self._txn = size - used, self._env.begin(write=True)
        self._room -= needed
        return self._txn

    def _end(self) -> None:
        if self._txn is not None:
            txn, self._txn, self._room = self._txn, None, 0
            txn.commit()

    def _write(self, body: Callable[[lmdb.Transaction], object]) -> None:
        # A full map drops the whole transaction, so the whole batch is replayed in a larger one (tensorpack#1562).
        while True:
            try:
                with self._env.begin(write=True) as txn:
                    body(txn)
                return
            except lmdb.MapFullError:
                self._env.set_mapsize(2 * self._env.info()["map_size"])

    def _part_rows(self, part: list[EncodedRecord], first: int) -> Iterator[tuple[bytes, bytes]]:
        yield _part_key(_DIGESTS, first), b"".join(sealed.digest for sealed in part)
        for name, field in self.fields.items():
            values = [sealed.stored[name] for sealed in part]
            if field.is_scalar:
                yield _part_key(name, first), np.array(values, SCALARS[field.kind]).tobytes()
            elif field.kind == "str":
                texts = [value.encode() for value in values]
                yield _part_key(name, first), b"".join(texts)
                yield _part_key(f"{name}.lengths", first), np.fromiter(map(len, texts), "<i8", len(texts)).tobytes()

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
        if self._env.info()["last_txnid"] % 2 == 0:  # readers of the format find the newer meta page at page 1
            self._write(lambda txn: txn.put(META, bytes(txn.get(META, db=self._meta_db) or b""), db=self._meta_db))
        # The end may be missing: pages that were freed before they were written.
        os.truncate(self._building, (self._env.info()["last_pgno"] + 1) * self._page)
        built = self._building if self._is_compact() else self._compacted()
        self._env.close()
        stamp_lmdb_file(str(built))
        self._staging.publish(built)

    def _is_compact(self) -> bool:
        """Whether the file may be published as it is: hardly a page is free, and no earlier try has put a stamp in."""
        end = self._env.info()["last_pgno"] + 1
        with self._env.begin() as txn:
            trees = [self._env.stat(), *(txn.stat(db) for db in (self._records, self._columns, self._meta_db))]
        used = 2 + sum(tree["branch_pages"] + tree["leaf_pages"] + tree["overflow_pages"] for tree in trees)
        with self._building.open("rb") as file:
            is_stamped = any(file.read(self._page)[-_STAMP:])
        return end - used <= _LOOSE * end and not is_stamped

    def _compacted(self) -> Path:
        built = self._staging.folder / "compact.mdb"
        built.unlink(missing_ok=True)
        self._env.copy(str(built), compact=True)
        return built

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
        txn.put(META, meta_to_text(meta, columns=checksums, salt=self._places.text).encode(), db=self._meta_db)
        txn.drop(self._parts, delete=True)

    def _take_back_columns(self, txn: lmdb.Transaction) -> None:
        """Undo `_put_columns`: publishing failed after it, and now the writer goes on."""
        seals = np.frombuffer(b"".join(value[-8:] for _, value in txn.cursor(self._records)), ">u8")
        txn.put(_part_key(_DIGESTS, 0), self._places.digests(seals, np.arange(len(seals))), db=self._parts)
        columns = {bytes(key).decode(): bytes(data) for key, data in txn.cursor(self._columns)}
        for name, field in self.fields.items():
            if field.is_scalar or field.kind == "str":
                txn.put(_part_key(name, 0), columns[name], db=self._parts)
            if field.kind == "str":
                offsets = np.frombuffer(columns[text_offsets_key(name).decode()], "<i8")
                txn.put(_part_key(f"{name}.lengths", 0), np.diff(offsets).tobytes(), db=self._parts)
        txn.drop(self._columns, delete=False)
        txn.delete(META, db=self._meta_db)

    def _discard(self) -> None:
        self._close()
        self._staging.discard()

    def _suspend(self) -> None:
        self._close()
        self._staging.release()

    def _close(self) -> None:
        if self._txn is not None:
            self._txn.abort()
            self._txn = None
        if hasattr(self, "_env"):  # opening it may have failed
            self._env.close()


def _open_env(file: Path) -> lmdb.Environment:
    size = max(_FIRST_MAP, 2 * _size(file))
    return lmdb.open(str(file), subdir=False, lock=False, meminit=False, max_dbs=4, map_size=size)


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _part_key(name: str, first: int) -> bytes:
    return f"{name}/".encode() + position_key(first)
