"""Writes native HDF5 stores: records go to a log, and publishing lays out the datasets from it.

libhdf5 leaves an unreadable file when its process dies, and may die itself when the disk is full. So it creates only empty
datasets of known size, in memory, when all records are known; plain writes fill them. The images are written twice.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from operator import add
from typing import Any, BinaryIO

import h5py
import msgspec
import numpy as np

from storeds._utils.urls import file_url
from storeds.backends.hdf5.columns import OFFSET, Datasets, datasets_of
from storeds.backends.hdf5.stamp import metadata_ranges, stamp
from storeds.backends.staging import Staging, explain, replace_file
from storeds.protocols import Array, Field
from storeds.records.canonical_json import canonical_json
from storeds.records.codec import SEAL
from storeds.records.columns import text_offsets
from storeds.records.meta import NATIVE, meta_from_text

__all__ = ["Hdf5Sink"]

_LENGTH = 8  # bytes before each record in the log
_SEAL_BYTES = 8
_BUFFERED = 1 << 18  # bytes
_SEAL = np.dtype("<u8")
_decode = msgspec.msgpack.Decoder().decode


class Hdf5Sink:
    """The `storeds.backends.writer.Sink` of ``hdf5://``.

    Parameters
    ----------
    path : str
        Absolute.
    """

    errors: tuple[type[Exception], ...] = (OSError,)

    def __init__(self, path: str) -> None:
        self.url: str = file_url("hdf5", path)
        self._staging = Staging(path, self.url, "built.h5")
        self._log_path, self._note_path = self._staging.folder / "log", self._staging.folder / "note"
        self._forget()

    def _forget(self) -> None:
        self._end = 0
        self._sizes: Counter[str] = Counter()  # field of variable size → bytes of all its values

    def exists(self) -> bool:
        # docstring inherited
        return self._staging.exists()

    def begin(self) -> bytes | None:
        # docstring inherited
        self._staging.begin()
        self._forget()
        # A folder that is being removed may have lost its log first.
        if not self._note_path.exists() or not self._log_path.exists():
            return None
        head, _, note = self._note_path.read_bytes().partition(b"\n")
        try:
            state = json.loads(head)
            self._end, self._sizes = int(state["end"]), Counter(state["sizes"])
        except (ValueError, KeyError, TypeError):
            return b""  # no writer continues with it
        return note

    def put(self, first: int, packed: Sequence[bytes], note: bytes) -> None:
        # docstring inherited
        # The datasets have a fixed place, so `finish` must know their sizes before it unpacks the first record.
        sizes = self._sizes.copy()
        if packed:
            names, values_of = _reader(packed[0])
            totals = [0] * len(names)
            for sealed in packed:
                totals = list(map(add, totals, map(_size, values_of(sealed))))
            sizes.update(dict(zip(names, totals, strict=True)))
        with open(self._log_path, "ab", _BUFFERED) as log:
            log.truncate(self._end)  # what a call that failed has left
            log.writelines(part for sealed in packed for part in (len(sealed).to_bytes(_LENGTH, "little"), sealed))
            log.flush()
            os.fsync(log.fileno())
        end = self._end + sum(_LENGTH + len(sealed) for sealed in packed)  # `tell` does not follow `truncate`
        replace_file(self._note_path, canonical_json({"end": end, "sizes": dict(sizes)}).encode() + b"\n" + note)
        self._end, self._sizes = end, sizes

    def scan(self) -> Iterator[bytes]:
        # docstring inherited
        with open(self._log_path, "rb", _BUFFERED) as log:
            left = self._end
            while left > 0:
                size = int.from_bytes(log.read(_LENGTH), "little")
                left -= _LENGTH + size
                if left < 0 or size < _SEAL_BYTES:  # it is damaged, and the writer notices that records are missing
                    return
                yield log.read(size)

    def finish(self, columns: Mapping[str, Array], meta: str, *, replace: bool) -> None:
        # docstring inherited
        with os.fdopen(os.memfd_create("storeds-hdf5"), "w+b") as laid:
            fields, places = self._lay_out(laid, meta)
            laid.flush()
            size = os.fstat(laid.fileno()).st_size
            metadata = metadata_ranges(places.values(), size)
            with open(self._staging.built, "w+b") as built:
                built.truncate(size)
                for start, stop in metadata:
                    built.seek(start)
                    built.write(os.pread(laid.fileno(), stop - start, start))
                self._fill({name: start for name, (start, _) in places.items()}, fields, columns)
                built.flush()
                built.seek(size)
                built.write(stamp(built.fileno(), metadata))
        self._staging.publish(replace=replace)

    def _lay_out(self, laid: BinaryIO, text: str) -> tuple[Mapping[str, Field], dict[str, tuple[int, int]]]:
        """Write an HDF5 file with space for all values; return the fields, and dataset in ``records`` → its byte range."""
        meta, _ = meta_from_text(text, self.url)
        places = {}
        flat = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        flat.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        flat.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        with h5py.File(laid, "w") as file:
            file.attrs["layout"], file.attrs["meta"] = NATIVE, text
            records = file.create_group("records")
            datasets: Datasets = {SEAL: (_SEAL, (meta.count,))}
            for name, field in meta.fields.items():
                datasets |= datasets_of(name, field, meta.count)
            for name, (dtype, shape) in datasets.items():
                size = tuple(self._sizes[name.removesuffix("/data")] if each is None else each for each in shape)
                dataset = records.create_dataset(name, size, dtype, dcpl=flat.copy())
                start = dataset.id.get_offset() if dataset.nbytes else 0
                places[name] = start, start + dataset.nbytes
        return meta.fields, places

    def _fill(self, starts: Mapping[str, int], fields: Mapping[str, Field], columns: Mapping[str, Array]) -> None:
        """Write all values of the datasets that begin at `starts` in the file."""
        with contextlib.ExitStack() as files:

            def region(name: str) -> BinaryIO:
                file = files.enter_context(open(self._staging.built, "r+b", _BUFFERED))
                file.seek(starts[name])
                return file

            for name, field in fields.items():
                if name in columns:
                    with region(name if field.is_scalar else f"{name}/data") as file:
                        file.write(columns[name].data)
                if field.kind == "str":
                    with region(f"{name}/offsets") as file:
                        file.write(columns[text_offsets(name)].data)
            seals, writers, values_of = region(SEAL), list[_ValueWriter](), None
            for sealed in self.scan():
                if values_of is None:
                    names, values_of = _reader(sealed, columns)
                    writers = [_ValueWriter(name, fields[name], region) for name in names]
                for writer, value in zip(writers, values_of(sealed), strict=True):
                    writer.write(value)
                seals.write(sealed[: -_SEAL_BYTES - 1 : -1])  # little-endian

    def drop(self) -> None:
        # docstring inherited
        self._note_path.unlink(missing_ok=True)  # first, since it promises a log
        self._staging.drop()
        self._forget()

    def close(self) -> None:
        # docstring inherited
        self._staging.close()

    def explain(self, error: Exception) -> str:
        # docstring inherited
        return explain(error, self._staging.target.parent)


class _ValueWriter:
    """Writes the values of one field, in the order of the records, into its datasets."""

    def __init__(self, name: str, field: Field, region: Callable[[str], BinaryIO]) -> None:
        self.name, self._field, self._end = name, field, 0
        self._data = region(name if field.is_fixed else f"{name}/data")
        self._offsets = None if field.is_fixed else region(f"{name}/offsets")
        self._shapes = region(f"{name}/shapes") if self._offsets and field.kind == "array" else None
        if self._offsets:
            self._offsets.write(bytes(8))

    def write(self, value: Any) -> None:
        if self._field.kind == "array":
            _, shape, value = value
            if self._shapes:
                self._shapes.write(np.array(shape, OFFSET).data)
        elif self._field.kind == "json":
            value = value.encode()
        self._data.write(value)
        if self._offsets:
            self._end += len(value)
            self._offsets.write(self._end.to_bytes(8, "little"))


def _reader(sealed: bytes, left_out: Container[str] = ()) -> tuple[list[str], Callable[[bytes], tuple[Any, ...]]]:
    """Return the names of the fields of a record that are no numbers, and a function that returns their values.

    The function takes any record of the store. It copies no bytes: a value is a memoryview, a text, or dtype, shape and
    memoryview of an array.
    """
    types: dict[type, Any] = {bytes: memoryview, str: str, list: tuple[str, list[int], memoryview]}
    found = _decode(sealed[:-_SEAL_BYTES])
    names = [name for name, value in found.items() if type(value) in types and name not in left_out]
    fields = [(f"f{number}", types[type(found[name])]) for number, name in enumerate(names)]
    row = msgspec.defstruct("Row", fields, rename=dict(zip([field for field, _ in fields], names, strict=True)))
    decode = msgspec.msgpack.Decoder(row).decode
    return names, lambda sealed: msgspec.structs.astuple(decode(memoryview(sealed)[:-_SEAL_BYTES]))


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode())
    return len(value[2] if isinstance(value, tuple) else value)
