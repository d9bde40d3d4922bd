"""WebDataset's tar shards: members that share a name up to its first dot make one sample."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from storeds.errors import ConfigError
from storeds.ops.sources._packed import Fingerprint, Texts
from storeds.ops.sources._samples import SampleIndex, field_of
from storeds.ops.sources._shards import find_shards, short_names
from storeds.ops.sources._table import is_int
from storeds.ops.sources.base import BadItem, Problem
from storeds.protocols import JSON, Field, Kind, Record
from storeds.record import canonical_json

__all__ = ["TarSource"]


class TarSource:
    """Tar files as WebDataset writes them, read at random through the places of their members.

    Parameters
    ----------
    shards : path or iterable of paths
        A tar file, several, a glob, or a range such as ``train-{000..099}.tar``.
    extensions : sequence of str, optional
        Which members to take; all of them by default. The image must be among them.
    key_with_shard : bool
        Whether keys begin with the name of their shard, for shards that number their samples alike.
    label : bool
        False to pack without labels. Required where samples hold more than images, but no label.
    label_column : str, optional
        The ending of the members that hold labels, as integers; ``cls`` by default.
    include_hidden : bool
        Whether to take hidden members, such as macOS's ``._0001.jpg``.

    Notes
    -----
    The field ``image`` holds the member ending in .jpg, .png and so on, ``label`` the integer in .cls, ``key`` what the
    members' names share, ``json`` and ``txt`` what .json and .txt hold. Other endings become fields of bytes, or
    images: ``a.seg.png`` is the field ``seg_png``.

    Raises
    ------
    StoreNotFoundError
        A file is missing.
    ConfigError
        There is no sample at all.
    """

    def __init__(
        self,
        shards: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        extensions: Sequence[str] | None = None,
        key_with_shard: bool = False,
        label: bool = True,
        label_column: str | None = None,
        include_hidden: bool = False,
    ) -> None:
        self._paths = find_shards(shards)
        self._names = short_names(self._paths)
        wanted = None if extensions is None else {extension.lower().lstrip(".") for extension in extensions}
        if not label and label_column:
            raise ConfigError(f"label_column={label_column!r} and label=False contradict each other")
        ending = (label_column or "cls").lower().lstrip(".") if label else None
        index = SampleIndex(wanted, key_with_shard=key_with_shard, include_hidden=include_hidden, label=ending)
        self._states = [index.take(path, name) for path, name in zip(self._paths, self._names, strict=True)]
        index.settle()
        if not index.keys and not index.problems:
            raise ConfigError(
                f"{', '.join(self._names[:4])}: no members that make a sample, such as 0001.jpg, 0001.cls"
            )
        self.columns: Mapping[str, str | None] = {
            f".{found}": field for field in index.places for found in sorted(index.endings[field])
        }
        if label and index.places and "label" not in index.places:
            self._refuse_without_label(label_column)
        self._keys: Texts = index.keys
        self._shards: array[int] = index.shards
        self._places: dict[str, tuple[array[int], array[int]]] = index.places
        self._endings = {field: sorted(index.endings[field]) for field in index.places}
        self.problems: Sequence[Problem] = tuple(index.problems)
        self.notes: Sequence[str] = index.hidden.notes()
        self.fields: Mapping[str, Field] = _fields(index.places)
        provenance: dict[str, JSON] = {"kind": "tar", "shards": len(self._paths)}
        self.attrs: Mapping[str, JSON] = {"source": provenance}
        self.fingerprint: JSON = self._hash()

    def _refuse_without_label(self, label_column: str | None) -> None:
        others = [ending for ending, field in self.columns.items() if field and field_of(field).kind != "image"]
        if label_column or others:
            held = f"beside the images they hold {', '.join(others)}" if others else "they hold images only"
            raise ConfigError(
                f"{', '.join(self._names[:4])}: samples have no .{label_column or 'cls'} with a label, {held}; say which "
                "ending holds it with label_column= (--label-column), or pass label=False (--no-label) to pack without labels"
            )

    def _hash(self) -> JSON:
        fingerprint = Fingerprint()
        for name, (size, mtime) in zip(self._names, self._states, strict=True):
            fingerprint.add(name.encode("utf-8", "surrogateescape").hex(), size, mtime)
        for key, shard in zip(self._keys, self._shards, strict=True):
            fingerprint.add(key, shard)
        for field, (offsets, sizes) in self._places.items():
            fingerprint.add(field)
            for offset, size in zip(offsets, sizes, strict=True):
                fingerprint.add("", offset, size)
        return fingerprint.finish("tar", len(self))

    def __len__(self) -> int:
        return len(self._keys)

    def name(self, index: int, /) -> str:
        # docstring inherited
        return f"{self._names[self._shards[index]]}: {self._keys[index]}"

    def size(self, index: int, /) -> int:
        # docstring inherited
        return sum(sizes[index] for _, sizes in self._places.values())

    def strata(self) -> Iterator[tuple[str, int | None]]:
        """Yield the key and the label of each item; reads the members that hold labels."""
        for index, key in enumerate(self._keys):
            try:
                yield key, self._label(index)
            except (BadItem, OSError):
                yield key, None

    def _label(self, index: int) -> int:
        descriptor = self._open(self._shards[index])
        try:
            return _integer(self._blob(descriptor, "label", index), "")
        finally:
            os.close(descriptor)

    def read(self, index: int, /) -> Record:
        # docstring inherited
        index = range(len(self))[index]
        shard = self._shards[index]
        descriptor = self._open(shard)
        try:
            blobs = {field: self._blob(descriptor, field, index) for field in self._places}
        except OSError as error:
            raise BadItem(f"its shard cannot be read: {error.strerror}") from None
        finally:
            os.close(descriptor)
        record: Record = {}
        for field, spec in self.fields.items():
            parse = _PARSERS.get(spec.kind)
            if field == "key":
                record[field] = self._keys[index]
            else:
                record[field] = blobs[field] if parse is None else parse(blobs[field], self._endings[field][0])
        return record

    def _open(self, shard: int) -> int:
        try:
            descriptor = os.open(self._paths[shard], os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise BadItem(f"its shard cannot be read: {error.strerror}") from None
        status = os.fstat(descriptor)
        if (status.st_size, status.st_mtime_ns) != self._states[shard]:
            os.close(descriptor)
            raise BadItem("its shard was changed after its members were listed")
        return descriptor

    def _blob(self, descriptor: int, field: str, index: int) -> bytes:
        offsets, sizes = self._places[field]
        blob = os.pread(descriptor, sizes[index], offsets[index])
        while len(blob) < sizes[index]:  # one call returns 2 GiB at most
            more = os.pread(descriptor, sizes[index] - len(blob), offsets[index] + len(blob))
            if not more:
                raise BadItem("its shard ends within it")
            blob += more
        return blob


def _fields(found: Iterable[str]) -> dict[str, Field]:
    rest = sorted(set(found) - {"image", "label"})
    kinds: dict[str, Kind] = {"image": "image"}
    if "label" in found:
        kinds["label"] = "int"
    kinds["key"] = "str"
    return {name: Field(kind) for name, kind in (kinds | {name: field_of(name).kind for name in rest}).items()}


def _integer(blob: bytes, ending: str) -> int:
    text = blob.decode("utf-8", "backslashreplace").strip()
    if not is_int(text):
        raise BadItem(f"its .{ending} holds {text[:40]!r}; expected an integer")
    return int(text)


def _text(blob: bytes, ending: str) -> str:
    try:
        return blob.decode()
    except UnicodeDecodeError as error:
        raise BadItem(f"its .{ending} is no UTF-8 at byte {error.start}") from None


def _json(blob: bytes, ending: str) -> Any:
    try:
        value = json.loads(_text(blob, ending))
        canonical_json(value)
    except json.JSONDecodeError as error:
        raise BadItem(f"its .{ending} is no JSON at line {error.lineno} column {error.colno}: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise BadItem(f"its .{ending} is JSON that cannot be kept: {error}") from None
    return value


_PARSERS: dict[str, Callable[[bytes, str], Any]] = {"int": _integer, "str": _text, "json": _json}
