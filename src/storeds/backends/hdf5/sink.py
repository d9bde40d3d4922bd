"""Writes native HDF5 stores: records go to a log, and publishing lays out the datasets from it.

libhdf5 leaves an unreadable file when its process dies, and may die itself when the disk is full. So it creates only empty
datasets of known size, in memory, when all records are known; plain writes fill them. The images are written twice.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, cast

import h5py
import msgspec
import numpy as np

from storeds._utils.locations import file_url
from storeds.backends.hdf5.stamp import metadata_ranges, stamp
from storeds.backends.staging import Staging, replace_file
from storeds.protocols import Array, Field
from storeds.records.columns import SCALARS, text_offsets
from storeds.records.fields import NATIVE, canonical_json, meta_from_text
from storeds.records.seals import SEAL

__all__ = ["Hdf5Sink"]

_LENGTH = 8  # bytes before each record in the log
_SEAL_BYTES = 8
_VECTORS = 1024  # Linux's limit of buffers in one call
_BUFFERED = 1 << 20  # bytes
_BYTE, _OFFSET, _SEAL = np.dtype("u1"), np.dtype("<i8"), np.dtype("<u8")
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
        self._log = -1
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
        os.truncate(self._log_path, self._end)
        return note

    def put(self, first: int, packed: Sequence[bytes], note: bytes) -> None:
        # docstring inherited
        if self._log < 0:
            self._log = os.open(self._log_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        region, sizes = _Region(self._log, self._end), self._sizes.copy()
        for sealed in packed:
            region.write(len(sealed).to_bytes(_LENGTH, "little"))
            region.write(sealed)
            sizes.update(_sizes(sealed))
        region.flush()
        os.fsync(self._log)
        end = self._end + region.size
        replace_file(self._note_path, canonical_json({"end": end, "sizes": dict(sizes)}).encode() + b"\n" + note)
        self._end, self._sizes = end, sizes

    def scan(self) -> Iterator[bytes]:
        # docstring inherited
        with open(self._log_path, "rb", _BUFFERED) as log:
            left = self._end
            while left > 0:
                size = int.from_bytes(log.read(_LENGTH), "little")
                left -= _LENGTH + size
                if left < 0:  # the log is damaged, and the writer notices the records that are missing
                    return
                yield log.read(size)

    def finish(self, columns: Mapping[str, Array], meta: str, *, replace: bool) -> None:
        # docstring inherited
        with _scratch_file() as laid:
            fields, places = self._lay_out(laid, meta)
            laid.flush()
            size = os.fstat(laid.fileno()).st_size
            metadata = metadata_ranges(places.values(), size)
            built = os.open(self._staging.built, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
            try:
                os.ftruncate(built, size)
                for start, stop in metadata:
                    _write(built, start, os.pread(laid.fileno(), stop - start, start))
                self._fill({name: _Region(built, start) for name, (start, _) in places.items()}, fields, columns)
                _write(built, size, stamp(built, metadata))
            finally:
                os.close(built)
        self._staging.publish(replace=replace)

    def _lay_out(self, laid: BinaryIO, text: str) -> tuple[Mapping[str, Field], dict[str, tuple[int, int]]]:
        """Write an HDF5 file with space for all values; return the fields, and dataset in ``records`` → its byte range."""
        meta, _ = meta_from_text(text, self.url)
        places = {}
        with h5py.File(laid, "w") as file:
            file.attrs["layout"], file.attrs["meta"] = NATIVE, text
            records = file.create_group("records")
            for name, shape, dtype in _datasets(meta.fields, meta.count, self._sizes):
                dataset = _create_flat(records, name, shape, dtype)
                start = dataset.id.get_offset() if dataset.nbytes else 0
                places[name] = start, start + dataset.nbytes
        return meta.fields, places

    def _fill(self, regions: Mapping[str, _Region], fields: Mapping[str, Field], columns: Mapping[str, Array]) -> None:
        """Write all values into the regions of their datasets."""
        rest = {name: field for name, field in fields.items() if name not in columns}
        for name, field in fields.items():
            if field.is_scalar:
                regions[name].write(columns[name])
            elif name in columns:
                regions[f"{name}/data"].write(columns[name])
                regions[f"{name}/offsets"].write(columns[text_offsets(name)])
            elif not field.is_fixed:
                regions[f"{name}/offsets"].write(bytes(8))
        for sealed in self.scan():
            record = _decode(memoryview(sealed)[:-_SEAL_BYTES])
            for name, field in rest.items():
                _write_value(regions, name, field, record[name])
            regions[SEAL].write(sealed[: -_SEAL_BYTES - 1 : -1])  # little-endian
        for region in regions.values():
            region.flush()

    def drop(self) -> None:
        # docstring inherited
        self._close_log()
        self._note_path.unlink(missing_ok=True)  # first, since it promises a log
        self._staging.drop()
        self._forget()

    def close(self) -> None:
        # docstring inherited
        self._close_log()
        self._staging.close()

    def _close_log(self) -> None:
        if self._log >= 0:
            os.close(self._log)
            self._log = -1

    def explain(self, error: Exception) -> str:
        # docstring inherited
        return self._staging.explain(error)


class _Region:
    """Writes to a part of a file from its beginning to its end, in large steps.

    Attributes
    ----------
    size : int
        Bytes written so far.
    """

    def __init__(self, descriptor: int, start: int) -> None:
        self._descriptor, self._start, self.size = descriptor, start, 0
        self._parts: list[Any] = []
        self._buffered = 0

    def write(self, data: bytes | Array) -> None:
        """Append `data`, which must not change until the next `flush`."""
        size = data.nbytes if isinstance(data, np.ndarray) else len(data)
        self._parts.append(data)
        self._buffered += size
        self.size += size
        if self._buffered >= _BUFFERED or len(self._parts) == _VECTORS:
            self.flush()

    def flush(self) -> None:
        at = self._start + self.size - self._buffered
        written = os.pwritev(self._descriptor, self._parts, at) if self._buffered else 0
        if written < self._buffered:  # more bytes than one call takes, or the disk is full and the next call raises
            _write(self._descriptor, at + written, b"".join(self._parts)[written:])
        self._parts, self._buffered = [], 0


def _write(descriptor: int, at: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, at)
        rest, at = rest[written:], at + written


def _write_value(regions: Mapping[str, _Region], name: str, field: Field, value: Any) -> None:
    shape: Any = ()
    if field.kind == "array":
        _, shape, value = value
    elif field.kind == "json":
        value = value.encode()
    if field.is_fixed:
        regions[name].write(value)
        return
    data = regions[f"{name}/data"]
    data.write(value)
    regions[f"{name}/offsets"].write(data.size.to_bytes(8, "little"))
    if field.kind == "array":
        regions[f"{name}/shapes"].write(np.array(shape, _OFFSET).tobytes())


def _sizes(sealed: bytes) -> dict[str, int]:
    """Return the bytes of each value of a record that is no number."""
    sizes = {}
    for name, value in _decode(memoryview(sealed)[:-_SEAL_BYTES]).items():
        if isinstance(value, list):
            sizes[name] = len(value[2])
        elif isinstance(value, (bytes, str)):
            sizes[name] = len(value) if isinstance(value, bytes) else len(value.encode())
    return sizes


def _datasets(
    fields: Mapping[str, Field], n: int, sizes: Counter[str]
) -> Iterator[tuple[str, tuple[int, ...], np.dtype[Any]]]:
    """Yield name, shape and dtype of each dataset in group ``records``."""
    for name, field in fields.items():
        if field.is_fixed:
            shape = tuple(size or 0 for size in field.shape or ())
            yield name, (n, *shape), SCALARS[field.kind] if field.is_scalar else np.dtype(field.dtype)
            continue
        yield f"{name}/data", (sizes[name],), _BYTE
        yield f"{name}/offsets", (n + 1,), _OFFSET
        if field.kind == "array":
            yield f"{name}/shapes", (n, len(field.shape or ())), _OFFSET
    yield SEAL, (n,), _SEAL


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


def _scratch_file() -> BinaryIO:
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("storeds-hdf5"), "w+b")
    return cast("BinaryIO", tempfile.TemporaryFile())  # for systems without memfd
