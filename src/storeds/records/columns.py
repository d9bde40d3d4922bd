"""Reads columns, selects records by their values, and caches positions in memory-mapped files."""

from __future__ import annotations

import array
import contextlib
import itertools
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec
import numpy as np
import xxhash

from storeds.errors import ConfigError, RecordError, suggest
from storeds.protocols import JSON, Array, Backend, Field, Meta, Record, SupportsColumns, SupportsWhere
from storeds.records.codec import canonical_value, preview
from storeds.records.fields import canonical_json

__all__ = [
    "SCALARS",
    "TEXT",
    "ColumnCollector",
    "cache_folder",
    "check_has_column",
    "check_one_value",
    "check_where",
    "column_from_records",
    "column_of",
    "index_path",
    "load_index",
    "load_json",
    "matching_positions",
    "positions_by_columns",
    "read_arrays",
    "read_column",
    "save_index",
    "save_json",
    "stack_records",
    "stackable",
    "stats_path",
    "text_column",
    "text_offsets",
]

T = TypeVar("T")
_BATCH = 1024

SCALARS = {"int": np.dtype("<i8"), "float": np.dtype("<f8"), "bool": np.dtype("?")}
# Variable width and NUL-safe, unlike "U", which pads to the longest and strips trailing NULs.
TEXT = np.dtypes.StringDType()


def column_of(field: Field, values: Sequence[Any]) -> Array:
    """Return user values of a scalar, text or fixed-shape array field as one array."""
    if field.kind == "str":
        return np.array(values, dtype=TEXT)
    if field.kind == "array":
        shape = (len(values), *(size or 0 for size in field.shape or ()))
        return np.array(values, dtype=field.dtype).reshape(shape)
    return np.array(values, dtype=SCALARS[field.kind])


class ColumnCollector:
    """Collects the fields of kind int, float, bool and str of all records of a store, 8 bytes for each number."""

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self._numbers = {name: array.array(_CODES[f.kind]) for name, f in fields.items() if f.kind in _CODES}
        self._dtypes = {name: SCALARS[fields[name].kind] for name in self._numbers}
        self._texts = {name: (bytearray(), array.array("q", [0])) for name, f in fields.items() if f.kind == "str"}

    def add(self, stored: Record) -> None:
        """Add the next record, in stored form."""
        for name, numbers in self._numbers.items():
            numbers.append(stored[name])
        for name, (data, bounds) in self._texts.items():
            data += stored[name].encode()
            bounds.append(len(data))

    def columns(self) -> dict[str, Array]:
        """Return the columns as `storeds.backends.writer.Sink.finish` takes them."""
        found = {name: np.frombuffer(numbers, self._dtypes[name]) for name, numbers in self._numbers.items()}
        for name, (data, bounds) in self._texts.items():
            found[name] = np.frombuffer(data, np.uint8)
            found[text_offsets(name)] = np.frombuffer(bounds, "<i8")
        return found


def text_offsets(name: str) -> str:
    """Return the name of the column with the bounds of the texts in column `name`."""
    return f"{name}.offsets"


_CODES = {"int": "q", "float": "d", "bool": "b"}


def text_column(data: bytes, offsets: Iterable[int]) -> Array:
    """Return the texts that lie end to end in `data`; ``offsets`` has one more entry than there are texts."""
    bounds = list(offsets)
    texts = [data[start:stop].decode() for start, stop in itertools.pairwise(bounds)]
    return np.array(texts, dtype=TEXT)


def check_has_column(url: str, name: str, field: Field) -> None:
    """Raise ConfigError if the values of a field make no array."""
    if field.kind != "str" and not field.is_fixed:
        raise ConfigError(
            f"{url}: field {name!r} is of kind {field.kind}, which has no column; "
            "columns are int, float, bool, str and arrays of fixed shape"
        )


def read_column(backend: Backend, name: str) -> Array:
    """Return field `name` of all records: by `SupportsColumns`, else record by record.

    Raises
    ------
    ConfigError
        The field does not exist, or has no column.
    RecordError
        A record on the way is bad.
    """
    return backend.column(name) if isinstance(backend, SupportsColumns) else column_from_records(backend, name)


def check_one_value(column: Array, setting: str, name: str) -> Array:
    """Return a column unchanged if each record has one value in it that can be compared; `setting` uses the field `name`.

    Raises
    ------
    ConfigError
        The values are arrays, or some are NaN.
    """
    if column.ndim != 1:
        raise ConfigError(
            f"{setting}={name!r}: the field is of kind array, of shape {list(column.shape[1:])}, and each sample needs one "
            "value. Store a field of kind int, float, bool or str, such as the number of the class"
        )
    missing = np.flatnonzero(column != column)  # only NaN differs from itself
    if missing.size:
        raise ConfigError(
            f"{setting}={name!r}: the field is of kind float, and {len(missing):,} of {len(column):,} values are NaN, the "
            f"first at {missing[0]}. Leave these records out, or give them a value of their own"
        )
    return column


def column_from_records(backend: Backend, name: str) -> Array:
    """Return field `name` of all records, read in batches; raises as `read_column` does."""
    known = backend.meta.fields
    if name not in known:
        raise ConfigError(f"{backend.url} has no field {name!r}; {suggest(name, known, 'fields')}")
    check_has_column(backend.url, name, known[name])
    values: list[Any] = []
    for start in range(0, len(backend), _BATCH):
        for record in backend.get_many(range(start, min(start + _BATCH, len(backend))), (name,)):
            if isinstance(record, RecordError):
                raise record
            values.append(record[name])
    return column_of(known[name], values)


def read_arrays(backend: Backend, positions: Sequence[int], fields: Sequence[str] | None = None) -> dict[str, Array]:
    """Return the same as `SupportsBatchArrays.get_arrays`, from records if the backend lacks that method."""
    # Asking the protocol itself takes as long as copying a hundred rows.
    read: Callable[..., dict[str, Array]] | None = getattr(backend, "get_arrays", None)
    return stack_records(backend, positions, fields) if read is None else read(positions, fields)


def stack_records(backend: Backend, positions: Sequence[int], fields: Sequence[str] | None = None) -> dict[str, Array]:
    """Return the same as `read_arrays`, from records."""
    names = stackable(backend, fields)
    records = []
    for record in backend.get_many(positions, names):
        if isinstance(record, RecordError):
            raise record
        records.append(record)
    return {name: column_of(backend.meta.fields[name], [record[name] for record in records]) for name in names}


def stackable(backend: Backend, fields: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of the wanted fields, each once; by default all that are of fixed size. Raises ConfigError."""
    declared = backend.meta.fields
    if fields is None:
        return tuple(name for name, field in declared.items() if field.is_fixed)
    for name in fields:
        if name not in declared:
            raise ConfigError(f"{backend.url} has no field {name!r}; {suggest(name, declared, 'fields')}")
        if not declared[name].is_fixed:
            fixed = ", ".join(other for other, field in declared.items() if field.is_fixed) or "there are none here"
            raise ConfigError(
                f"{backend.url} has a field {name!r} of kind {declared[name].kind}, whose values make no array: those of "
                f"int, float, bool and arrays of fixed shape do ({fixed}). get_many reads the others"
            )
    return tuple(dict.fromkeys(fields))


def matching_positions(backend: Backend, where: Mapping[str, Sequence[Any]]) -> Array:
    """Return the int64 positions, ascending, of records each of whose fields in `where` has one of its values.

    `where` is a result of `check_where`.
    """
    return backend.select(where) if isinstance(backend, SupportsWhere) else positions_by_columns(backend, where)


def positions_by_columns(backend: Backend, where: Mapping[str, Sequence[Any]]) -> Array:
    """Return the same as `matching_positions`, from the columns of the fields."""
    mask = np.ones(len(backend), dtype=bool)
    for name, values in where.items():
        column, found = read_column(backend, name), np.zeros(len(backend), dtype=bool)
        for value in values:
            # NumPy strips trailing NULs when it converts a Python str.
            found |= column == (np.array(value, TEXT) if isinstance(value, str) else value)
        mask &= found
    return np.flatnonzero(mask).astype(np.int64)


_WHERE_TYPES: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}


def check_where(where: Mapping[str, Any], fields: Mapping[str, Field], url: str) -> dict[str, list[Any]]:
    """Return field → accepted values; raises ConfigError for values that cannot be compared.

    A value means equality, a list membership. Values that no record can equal are dropped: NaN, and values that no store
    accepts, such as 10**400 and text with a lone surrogate.
    """
    checked: dict[str, list[Any]] = {}
    for name, wanted in where.items():
        if name not in fields:
            raise ConfigError(f"where: {url} has no field {name!r}; {suggest(name, fields, 'fields')}")
        types = _WHERE_TYPES.get(fields[name].kind)
        if types is None:
            raise ConfigError(
                f"where: field {name!r} is of kind {fields[name].kind}; only int, float, bool and str compare"
            )
        values = list(wanted) if isinstance(wanted, (list, tuple, set, frozenset)) else [wanted]
        for value in values:
            if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
                raise ConfigError(f"where: field {name!r} is {fields[name].kind}, so it never equals {preview(value)}")
        checked[name] = [value for value in values if _equals_something(fields[name], value)]
    return checked


def _equals_something(field: Field, value: Any) -> bool:
    try:
        stored = canonical_value(field, value)
    except (ValueError, OverflowError):
        return False
    return bool(stored == value)


_POSITIONS = np.dtype(np.int64)
_KEPT = 30 * 86_400  # seconds since the last use


_REMOVED = re.compile(r"storeds-[0-9a-f]{32}(\.npy|-\w{8}\.fresh)")  # names of lists and unfinished files in the cache


def cache_folder() -> Path:
    """Return the folder ``storeds`` in ``$STOREDS_CACHE``, ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    parent = os.environ.get("STOREDS_CACHE") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(parent) / "storeds"


def index_path(*key: JSON) -> Path:
    """Return the cache file for `key`: the URL and build of the store, and the query."""
    return cache_folder() / f"storeds-{xxhash.xxh3_128_hexdigest(canonical_json(list(key)).encode())}.npy"


def load_index(path: Path, dtype: np.dtype[Any] = _POSITIONS) -> Array | None:
    """Return the positions, or other rows, in `path`, memory-mapped and read-only; None if it is missing or damaged."""
    try:
        positions: Any = np.load(path, mmap_mode="r", allow_pickle=False)
        with open(path, "rb") as file:
            file.seek(positions.offset + positions.nbytes)
            checksum = file.read()
    except (OSError, ValueError, EOFError, AttributeError):
        return None
    if positions.dtype != dtype or positions.ndim != 1 or checksum != _checksum(positions):
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    found: Array = positions
    return found


def _checksum(positions: Array) -> bytes:
    return xxhash.xxh3_64_digest(np.ascontiguousarray(positions).view(np.uint8).data)


def save_index(path: Path, positions: Array) -> Array:
    """Write `positions` to `path` in one step and return them memory-mapped, or unchanged if writing fails.

    Removes the lists in the folder that were not used for 30 days, because their stores may have changed.
    """
    with contextlib.suppress(OSError):
        _replace(path, partial(_write_index, positions))
        _remove_unused(path.parent)
        mapped = load_index(path)
        if mapped is not None:
            return mapped
    return positions


def _write_index(positions: Array, file: IO[bytes]) -> None:
    np.save(file, positions, allow_pickle=False)
    file.write(_checksum(positions))


def _replace(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, fresh = tempfile.mkstemp(dir=path.parent, prefix=f"{path.stem}-", suffix=".fresh")
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
        os.replace(fresh, path)
    except BaseException:
        os.unlink(fresh)
        raise


def stats_path(meta: Meta, field: str, mode: str, where: str | None = None) -> Path:
    """Return the cache file for the statistics of the pictures in `field`, see `storeds.ops.stats`."""
    return index_path("stats", 1, meta.id, meta.build, field, mode, where).with_suffix(".json")


def load_json(path: Path, form: type[T]) -> T | None:
    """Return the value in `path` as a `form`, or None if the file is missing, damaged or holds another form."""
    try:
        return msgspec.convert(json.loads(path.read_bytes()), form)
    except (OSError, ValueError):  # which includes msgspec.ValidationError
        return None


def save_json(path: Path, value: JSON) -> bool:
    """Write `value` to `path` in one step; return whether that was possible. The file is small and kept for ever."""
    try:
        _replace(path, lambda file: file.write(json.dumps(value).encode()))
    except OSError:
        return False
    return True


def _remove_unused(folder: Path) -> None:
    """Remove old lists and unfinished files. Any other file in the folder belongs to the user."""
    oldest = time.time() - _KEPT
    with os.scandir(folder) as entries:
        for entry in entries:
            if not _REMOVED.fullmatch(entry.name) or not entry.is_file(follow_symlinks=False):
                continue
            with contextlib.suppress(OSError):  # another process removes it too
                if entry.stat(follow_symlinks=False).st_mtime < oldest:
                    os.unlink(entry.path)
