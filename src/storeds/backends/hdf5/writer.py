"""Writes native HDF5 stores: columns grow as plain files, and publishing builds one HDF5 file around them.

libhdf5 leaves an unreadable file when its process dies, so it is only used when all records are known. Append-only
files with a durable count survive a crash. The file of the first image or bytes column holds most of a typical store.
It has room for a header at its start and becomes the store; other columns are copied to where libhdf5 allocates them.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, cast

import h5py
import numpy as np
import xxhash

from storeds._utils.locations import StoreURL, file_path, file_url
from storeds.backends.base import parse_options
from storeds.backends.hdf5.backend import Hdf5Options, stamp_hdf5_file
from storeds.backends.hdf5.columns import block_digests, column_datasets
from storeds.backends.staging import Staging, copy_range, kept_places, replace_text, sync_path, written_ranges
from storeds.backends.writer import COMMIT_EVERY, EncodedRecord, StoreWriter
from storeds.errors import FormatError
from storeds.protocols import JSON, Array, Field, Meta
from storeds.records.codec import SEAL
from storeds.records.columns import SCALARS
from storeds.records.fields import fields_to_json, meta_to_row

__all__ = ["Hdf5Writer"]

_ROOM = 1 << 14  # bytes before the column that becomes the store; libhdf5 writes 3 KiB there
_WORTH = 1 << 16  # bytes; a smaller column is copied instead of becoming the store
_VECTORS = 1024  # Linux's limit of buffers in one call


class Hdf5Writer(StoreWriter):
    """The `Writer` of ``hdf5://``; see `storeds.open_writer`."""

    part_bytes: ClassVar[int] = 1 << 20
    needs_packed: ClassVar[bool] = False

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
        parse_options(Hdf5Options, in_url, options, url)
        super().__init__(file_url("hdf5", path), fields, commit_every, check=check)
        whole = {"kind": "hdf5", "fields": fields_to_json(self.fields), "plan": plan}
        self._staging = Staging(path, self.url, whole, overwrite=overwrite, resume=resume)
        self._folder = self._staging.folder
        self._ends = dict.fromkeys(_column_names(self.fields), 0)
        blobs = (f"{name}.data" for name, field in self.fields.items() if field.kind in ("image", "bytes"))
        self._body = next(blobs, None)
        self._files: dict[str, int] = {}
        with self._opening():
            self._open()

    def _open(self) -> None:
        self._places = kept_places(self._folder)
        count = self._take_state() if self._staging.resumed else 0
        for name, end in self._ends.items():
            path = self._path(name)
            self._staging.separate(path)
            self._files[name] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            if end and os.fstat(self._files[name]).st_size < self._begin(name) + end:
                raise FormatError(f"{path} is shorter than its durable {end} bytes; start again with overwrite=True")
            os.ftruncate(self._files[name], self._begin(name) + end)
        seals = np.frombuffer(_read(self._files[SEAL], count * 8), "<u8")
        self._resume_from(count, [self._places.digests(seals, np.arange(count))])

    def _take_state(self) -> int:
        """Adopt the durable records and return their number."""
        state_file = self._folder / "state.json"
        if not state_file.exists():
            return 0
        state = json.loads(state_file.read_text())
        if self._body is not None and state["ends"][self._body] and not self._path(self._body).exists():
            # It became the target on a file system without hard links, so the other columns are useless.
            state_file.unlink()
            sync_path(self._folder)
            return 0
        self._ends = state["ends"]
        self.note = state["note"]
        return int(state["count"])

    def _path(self, column: str) -> Path:
        return self._folder / (f"{column}.store" if column == self._body else f"{column}.column")

    def _begin(self, column: str) -> int:
        return _ROOM if column == self._body else 0

    def _reason(self, error: BaseException) -> str:
        others = sum(end for name, end in self._ends.items() if name != self._body)
        return self._staging.explain(error, self._batch_bytes + self._part_bytes or others)

    def _commit(self, batch: list[EncodedRecord], first: int) -> None:
        if batch:
            self._write_part(batch, first)
        for descriptor in self._files.values():
            os.fsync(descriptor)
        self._save_state(first + len(batch), self.stored_note)

    def _write_part(self, part: list[EncodedRecord], first: int) -> None:
        seals = self._places.seals([sealed.digest for sealed in part], first)
        self._append(SEAL, [seals.astype("<u8").tobytes()])
        for name, field in self.fields.items():
            self._append_field(name, field, [sealed.stored[name] for sealed in part])

    def _append_field(self, name: str, field: Field, values: list[Any]) -> None:
        if field.is_scalar:
            self._append(name, [np.array(values, SCALARS[field.kind]).tobytes()])
        elif field.is_fixed:
            self._append(name, list(map(np.ndarray.tobytes, values)))
        else:
            blobs = [_to_bytes(value) for value in values]
            stops = self._ends[f"{name}.data"] + np.cumsum([len(blob) for blob in blobs], dtype="<i8")
            self._append(f"{name}.data", blobs)
            self._append(f"{name}.stops", [stops.tobytes()])
            if field.kind == "array":
                self._append(f"{name}.shapes", [np.array([value.shape for value in values], "<i8").tobytes()])

    def _append(self, name: str, blobs: list[bytes]) -> None:
        # Write at the durable end, not the file's end, to overwrite a batch that failed half-way.
        for start in range(0, len(blobs), _VECTORS):
            self._ends[name] += _write_all(
                self._files[name], blobs[start : start + _VECTORS], self._begin(name) + self._ends[name]
            )

    def _save_note(self, note: JSON) -> None:
        self._save_state(self._durable, note)

    def _save_state(self, count: int, note: JSON) -> None:
        replace_text(self._folder / "state.json", json.dumps({"count": count, "ends": self._ends, "note": note}))

    def _publish(self, meta: Meta) -> None:
        (self._folder / "built.h5").unlink(missing_ok=True)  # a crashed writer may have linked it to the target
        # libhdf5 writes to a sparse file in memory: a full disk under libhdf5 can kill the process.
        with _scratch_file() as laid:
            places, raw = self._lay_out(laid, meta)
            laid.flush()
            stays = self._body if places.get(self._body or "") == _ROOM else None
            built = self._folder / "built.h5" if stays is None else self._path(stays)
            target = os.open(built, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                self._fill(target, laid.fileno(), stays)
                for name, place in places.items():
                    if name != stays:
                        copy_range(self._files[name], self._begin(name), target, place, self._ends[name])
            finally:
                os.close(target)
        stamp_hdf5_file(str(built), raw)
        self._close_files()
        self._staging.publish(built)

    def _fill(self, target: int, laid: int, stays: str | None) -> None:
        """Copy what libhdf5 wrote in `laid` to `target`, around the column `stays`, which is already there."""
        begin, end = (0, 0) if stays is None else (_ROOM, _ROOM + self._ends[stays])
        os.ftruncate(target, end)  # removes leftovers of an earlier attempt
        os.ftruncate(target, os.fstat(laid).st_size)
        copy_range(laid, 0, target, 0, begin)
        for start, stop in written_ranges(laid, end):
            copy_range(laid, start, target, start, stop - start)

    def _lay_out(self, laid: BinaryIO, meta: Meta) -> tuple[dict[str, int], list[tuple[int, int]]]:
        """Write the HDF5 file `laid` with space for every column.

        Returns column name → offset of its space, and the byte ranges of all raw data.
        """
        n, places = meta.count, {}
        blocks = np.array(list(self._block_digests(n)), "<u8")
        row = meta_to_row(meta, blocks=xxhash.xxh3_64_hexdigest(blocks.tobytes()), salt=self._places.text)
        raw: list[tuple[int, int]] = []
        with h5py.File(laid, "w", **self._alignment()) as file:
            records = file.create_group("records")

            def room(name: str, column: str, shape: tuple[int, ...], dtype: Any) -> h5py.Dataset:
                dataset = _create_flat(records, name, shape, np.dtype(dtype))
                if self._ends[column]:
                    places[column] = dataset.id.get_offset()
                    raw.append(_raw_range(dataset))
                return dataset

            data = {}
            if self._body is not None:  # first, so that libhdf5 allocates it at offset `_ROOM`
                data[self._body] = room(self._body.replace(".", "/"), self._body, (self._ends[self._body],), "u1")
            file.attrs.update(row)
            for name, field in self.fields.items():
                if field.is_fixed:
                    shape = () if field.is_scalar else tuple(size or 0 for size in field.shape or ())
                    room(name, name, (n, *shape), field.dtype or SCALARS[field.kind])
                    continue
                column = f"{name}.data"
                if column not in data:
                    data[column] = room(f"{name}/data", column, (self._ends[column],), "u1")
                records[f"{name}/offsets"] = self._offsets(name, n)
                raw.append(_raw_range(records[f"{name}/offsets"]))
                if field.kind == "array":
                    room(f"{name}/shapes", f"{name}.shapes", (n, len(field.shape or ())), "<i8")
            room(SEAL, SEAL, (n,), "<u8")
            file["blocks"] = blocks
            if len(blocks):
                raw.append(_raw_range(file["blocks"]))
        return places, raw

    def _alignment(self) -> dict[str, int]:
        """Return the h5py options that align the body to `_ROOM`; smaller objects are not aligned."""
        size = 0 if self._body is None else self._ends[self._body]
        return {"alignment_threshold": size, "alignment_interval": _ROOM} if size >= _WORTH else {}

    def _offsets(self, name: str, n: int) -> Array:
        stops = np.frombuffer(_read(self._files[f"{name}.stops"], n * 8), "<i8")
        return np.concatenate((np.zeros(1, "<i8"), stops))

    def _block_digests(self, n: int) -> Iterator[int]:
        """Yield the block checksums of all columns; they protect columns that are read without whole records."""
        for name, dataset in column_datasets(self.fields):
            if dataset.endswith("/offsets"):
                yield from block_digests([self._offsets(name, n).tobytes()])
            else:
                column = dataset.replace("/", ".")
                yield from block_digests(_parts(self._files[column], self._ends[column]))

    def _discard(self) -> None:
        self._close_files()
        self._staging.discard()

    def _suspend(self) -> None:
        self._close_files()
        self._staging.release()

    def _close_files(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files = {}


def _column_names(fields: Mapping[str, Field]) -> list[str]:
    names = [SEAL]
    for name, field in fields.items():
        if field.is_fixed:
            names.append(name)
        else:
            names += [f"{name}.data", f"{name}.stops"] + ([f"{name}.shapes"] if field.kind == "array" else [])
    return names


def _to_bytes(value: str | bytes | Array) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return value.tobytes() if isinstance(value, np.ndarray) else value


def _scratch_file() -> BinaryIO:
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("storeds-hdf5"), "w+b")
    return cast("BinaryIO", tempfile.TemporaryFile())  # for systems without memfd


def _create_flat(group: h5py.Group, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> h5py.Dataset:
    """Create a contiguous dataset whose space is allocated now and filled later."""
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_layout(h5py.h5d.CONTIGUOUS)
    creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    linking = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    linking.set_create_intermediate_group(True)
    space = h5py.h5s.create_simple(shape)
    kind = h5py.h5t.py_create(dtype, logical=True)
    return h5py.Dataset(h5py.h5d.create(group.id, name.encode(), kind, space, creation, linking))


def _raw_range(dataset: h5py.Dataset) -> tuple[int, int]:
    start = dataset.id.get_offset()
    return start, start + dataset.nbytes


def _read(descriptor: int, size: int) -> bytes:
    return b"".join(_parts(descriptor, size))


def _parts(descriptor: int, size: int, step: int = 1 << 20) -> Iterator[bytes]:
    for start in range(0, size, step):
        yield os.pread(descriptor, min(step, size - start), start)


def _write_all(descriptor: int, blobs: list[bytes], at: int) -> int:
    """Write `blobs` one after another at offset `at`; return their total size."""
    size = sum(map(len, blobs))
    written = os.pwritev(descriptor, blobs, at)
    if written < size:  # more bytes than one call takes, or the disk is full, in which case the next call raises
        rest = memoryview(b"".join(blobs))[written:]
        while rest:
            rest = rest[os.pwrite(descriptor, rest, at + size - len(rest)) :]
    return size
