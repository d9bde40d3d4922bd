"""Writes native HDF5 stores: columns grow as plain files, and one HDF5 file is laid around them at publish.

libhdf5 leaves an unreadable file when its process dies, so nothing is written through it until everything is
known; append-only files with a durable count survive any death. Their bytes are then copied in the kernel to where
the HDF5 file says its datasets lie.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xxhash

from storeds._columns import SCALARS
from storeds._meta import meta_to_row
from storeds._staging import Staging, replace_text
from storeds._url import file_path, file_url
from storeds._writer import COMMIT_EVERY, Sealed, StoreWriter
from storeds.backends._hdf5_file import stamp_hdf5_file
from storeds.backends._hdf5_rows import COLUMN_CHECKSUM
from storeds.backends.base import parse_options
from storeds.backends.hdf5 import Hdf5Options
from storeds.errors import FormatError
from storeds.fields import fields_to_json
from storeds.protocols import JSON, Array, Field, Meta
from storeds.record import CHECKSUM

__all__ = ["Hdf5Writer"]


class Hdf5Writer(StoreWriter):
    """The `Writer` of ``hdf5://``; see `storeds.open_writer`."""

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
        parse_options(Hdf5Options, in_url, options, url)
        super().__init__(file_url("hdf5", path), fields, commit_every)
        whole = {"kind": "hdf5", "fields": fields_to_json(self.fields), "plan": plan}
        self._staging = Staging(path, self.url, whole, overwrite=overwrite, resume=resume)
        self._folder = self._staging.folder
        self._ends = dict.fromkeys(_column_names(self.fields), 0)
        self._files: dict[str, int] = {}
        try:
            self._open()
        except BaseException:
            self._suspend()
            raise

    def _open(self) -> None:
        state_file = self._folder / "state.json"
        count = 0
        if self._staging.resumed and state_file.exists():
            state = json.loads(state_file.read_text())
            count, self._ends, self.note = state["count"], state["ends"], state["note"]
        for name, end in self._ends.items():
            path = self._folder / f"{name}.column"
            self._files[name] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            if os.fstat(self._files[name]).st_size < end:
                raise FormatError(f"{path} is shorter than its durable {end} bytes; start anew with overwrite=True")
            os.ftruncate(self._files[name], end)
        self._resume_from(count, _parts(self._files[CHECKSUM], count * 8))

    def _commit(self, batch: list[Sealed], first: int) -> None:
        self._append(CHECKSUM, b"".join(sealed.digest for sealed in batch))
        for name, field in self.fields.items():
            self._append_field(name, field, [sealed.stored[name] for sealed in batch])
        for descriptor in self._files.values():
            os.fsync(descriptor)
        self._save_state(first + len(batch), self.note)

    def _append_field(self, name: str, field: Field, values: list[Any]) -> None:
        if field.is_scalar:
            self._append(name, np.array(values, SCALARS[field.kind]).tobytes())
        elif field.is_fixed:
            self._append(name, b"".join(map(np.ndarray.tobytes, values)))
        else:
            blobs = [_to_bytes(value) for value in values]
            stops = self._ends[f"{name}.data"] + np.cumsum([len(blob) for blob in blobs], dtype="<i8")
            self._append(f"{name}.data", b"".join(blobs))
            self._append(f"{name}.stops", stops.tobytes())
            if field.kind == "array":
                self._append(f"{name}.shapes", np.array([value.shape for value in values], "<i8").tobytes())

    def _append(self, name: str, data: bytes) -> None:
        # At the durable end, not at the file's: a batch that failed half-way is written over.
        end, view = self._ends[name], memoryview(data)
        while view:
            written = os.pwrite(self._files[name], view, end)
            view, end = view[written:], end + written
        self._ends[name] = end

    def _save_note(self, note: JSON) -> None:
        self._save_state(self._durable, note)

    def _save_state(self, count: int, note: JSON) -> None:
        replace_text(self._folder / "state.json", json.dumps({"count": count, "ends": self._ends, "note": note}))

    def _publish(self, meta: Meta) -> None:
        built = self._folder / "built.h5"
        built.unlink(missing_ok=True)
        places, raw = self._lay_out(built, meta)
        target = os.open(built, os.O_RDWR | os.O_CLOEXEC)
        try:
            for name, place in places.items():
                _copy(self._files[name], target, self._ends[name], place)
        finally:
            os.close(target)
        stamp_hdf5_file(str(built), raw)
        self._close_files()
        self._staging.publish(built)

    def _lay_out(self, built: Path, meta: Meta) -> tuple[dict[str, int], list[tuple[int, int]]]:
        """Write the HDF5 file with room for every column.

        Returns column name → offset of its room, and the byte ranges of all raw data.
        """
        n, places = meta.count, {}
        raw: list[tuple[int, int]] = []
        with h5py.File(built, "w") as file:
            for key, value in meta_to_row(meta).items():
                file.attrs[key] = value
            records = file.create_group("records")

            def room(name: str, column: str, shape: tuple[int, ...], dtype: Any) -> h5py.Dataset:
                dataset = _create_flat(records, name, shape, np.dtype(dtype))
                if self._ends[column]:
                    places[column] = dataset.id.get_offset()
                    raw.append(_raw_range(dataset))
                return dataset

            for name, field in self.fields.items():
                if field.is_fixed:
                    shape = () if field.is_scalar else tuple(size or 0 for size in field.shape or ())
                    dataset = room(name, name, (n, *shape), field.dtype or SCALARS[field.kind])
                    self._seal_column(dataset, name)
                    continue
                dataset = room(f"{name}/data", f"{name}.data", (self._ends[f"{name}.data"],), "u1")
                stops = np.frombuffer(_read(self._files[f"{name}.stops"], n * 8), "<i8")
                offsets = np.concatenate((np.zeros(1, "<i8"), stops))
                records[f"{name}/offsets"] = offsets
                raw.append(_raw_range(records[f"{name}/offsets"]))
                if field.kind == "str":
                    self._seal_column(dataset, f"{name}.data")
                    records[f"{name}/offsets"].attrs[COLUMN_CHECKSUM] = _hex(xxhash.xxh3_64(offsets.tobytes()))
                if field.kind == "array":
                    room(f"{name}/shapes", f"{name}.shapes", (n, len(field.shape or ())), "<i8")
            room(CHECKSUM, CHECKSUM, (n, 8), "u1")
        return places, raw

    def _seal_column(self, dataset: h5py.Dataset, column: str) -> None:
        # The records' checksums do not help who reads one column alone.
        hasher = xxhash.xxh3_64()
        for part in _parts(self._files[column], self._ends[column]):
            hasher.update(part)
        dataset.attrs[COLUMN_CHECKSUM] = _hex(hasher)

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
    names = [CHECKSUM]
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


def _create_flat(group: h5py.Group, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> h5py.Dataset:
    """Create a contiguous dataset whose room is allocated now and filled by nobody."""
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


def _hex(hasher: xxhash.xxh3_64) -> np.bytes_:
    return np.bytes_(hasher.hexdigest())  # as text of fixed length, which every HDF5 reader reads


def _read(descriptor: int, size: int) -> bytes:
    return b"".join(_parts(descriptor, size))


def _parts(descriptor: int, size: int, step: int = 1 << 20) -> Iterator[bytes]:
    for start in range(0, size, step):
        yield os.pread(descriptor, min(step, size - start), start)


def _copy(source: int, target: int, size: int, place: int) -> None:
    done = 0
    with contextlib.suppress(OSError):  # not every file system copies in the kernel
        while done < size:
            copied = os.copy_file_range(source, target, size - done, done, place + done)
            if copied == 0:
                break
            done += copied
    while done < size:
        done += os.pwrite(target, os.pread(source, min(1 << 20, size - done), done), place + done)
