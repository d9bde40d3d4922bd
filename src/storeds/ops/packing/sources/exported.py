"""The source for folders that ``export`` with format ``folder`` wrote."""

from __future__ import annotations

import io
import json
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import xxhash

from storeds.errors import ConfigError, FormatError, StoreNotFoundError
from storeds.jpeg import Verdict, set_verdict
from storeds.ops.packing.sources.base import (
    BadItem,
    Fingerprint,
    Problem,
    Root,
    StringArray,
    file_state,
    path_fault,
    read_file,
    show,
)
from storeds.protocols import JSON, Array, Field, Record
from storeds.records.fields import fields_from_json, pictures, without_verdicts

__all__ = ["FIELDS_FILE", "ROWS_FILE", "VERSION", "ExportedSource", "damage_to_row", "is_exported", "is_inline"]

FIELDS_FILE = "storeds.json"
"""The fields and attributes of the store."""
ROWS_FILE = "metadata.jsonl"
"""One JSON object for each record."""
VERSION = 1
_TYPES = {"str": str, "int": int, "float": float, "bool": bool}
_ACCEPTED = {"i": "iu", "u": "iu", "f": "iuf", "b": "b"}  # kind of a dtype → those of JSON's values
_INLINE_ROLES = ("boxes", "keypoints", "labels")


def is_inline(declared: Field) -> bool:
    """Whether ``metadata.jsonl`` holds the values of a field. Those of others are files."""
    if declared.kind != "array":
        return declared.kind not in ("image", "bytes")
    # An array without rows keeps its other dimensions only if these are declared.
    has_shape = None not in (declared.shape or ())[1:]
    has_json = (declared.dtype or "").lstrip("<|>=")[:1] in ("i", "u", "f", "b")
    return has_shape and has_json and (declared.role in _INLINE_ROLES or declared.of is not None)


def is_exported(folder: str) -> bool:
    """Whether ``export`` wrote a folder with format ``folder``."""
    return all(os.path.isfile(os.path.join(folder, name)) for name in (FIELDS_FILE, ROWS_FILE))


def damage_to_row(record: Record, fields: Mapping[str, Field]) -> dict[str, JSON]:
    """Return the verdicts on the damaged pictures of a record, each with the checksum of its picture.

    A repaired picture looks whole, so `pack` could not tell what was lost.
    """
    row: dict[str, JSON] = {}
    for image, names in pictures(fields).items():
        verdict = Verdict.of(record, image)
        if verdict is not None and not verdict.is_whole:
            row |= {name: record[name] for name in names}
            row[f"{image}_xxh3"] = xxhash.xxh3_64_hexdigest(record[image])
    return row


def _damage_of_row(row: dict[str, Any], record: Record, image: str) -> Verdict | None:
    """Return the verdict in a row, or None if there is none, or the picture was replaced since."""
    is_same = row.get(f"{image}_xxh3") == xxhash.xxh3_64_hexdigest(record[image])
    return Verdict.of(row, image) if is_same else None


class ExportedSource:
    """A folder that ``storeds export --format folder`` wrote. The store has the fields, attributes and id of the first.

    Parameters
    ----------
    root : path
        The folder.
    allow_outside : bool
        Allow paths in ``metadata.jsonl`` that leave it.

    Notes
    -----
    Rows of ``metadata.jsonl`` may be changed, added and removed. Pictures are examined like those of any other source,
    except damaged ones, repaired or not, whose rows have the verdict that the store had. A replaced picture is examined.

    Raises
    ------
    StoreNotFoundError, FormatError
        The folder does not exist, or its ``storeds.json`` is not as ``export`` writes it.
    """

    thread_safe = True
    notes: Sequence[str] = ()

    def __init__(self, root: str | os.PathLike[str], *, allow_outside: bool = False) -> None:
        self._root = os.path.abspath(root)
        self.fields: Mapping[str, Field]
        self.attrs: Mapping[str, JSON]
        self.fields, self.attrs, self._columns = _load_description(os.path.join(self._root, FIELDS_FILE))
        self._written = without_verdicts(self.fields)
        self._lines, self._numbers, self._sizes = StringArray(), array("q"), array("q")
        folder = Root(self._root, allow_outside=allow_outside)
        fingerprint = Fingerprint()
        fingerprint.add(json.dumps([str(self.fields), self.attrs, self._columns]))
        problems: list[Problem] = []
        seen: dict[str, int] = {}
        for number, line in self._read_lines():
            row = self._checked_row(line, folder, seen, number)
            if isinstance(row, str):
                problems.append(Problem(f"{ROWS_FILE} line {number}", row))
                continue
            states = [file_state(os.path.join(self._root, path)) for path in self._paths(row)]
            self._lines.append(line)
            self._numbers.append(number)
            self._sizes.append(len(line) + sum(size for size, _ in states))
            fingerprint.add(line, *(part for state in states for part in state))
        self.problems: Sequence[Problem] = tuple(problems)
        self.fingerprint: JSON = fingerprint.finish("exported", len(self._lines))

    def _read_lines(self) -> Iterator[tuple[int, str]]:
        try:
            with open(os.path.join(self._root, ROWS_FILE), encoding="utf-8-sig") as file:
                for number, line in enumerate(file, 1):
                    if line.strip():
                        yield number, line.rstrip("\n")
        except (OSError, UnicodeError) as error:
            raise FormatError(f"{show(self._root)}/{ROWS_FILE} cannot be read: {error}") from None

    def _paths(self, row: Mapping[str, Any]) -> list[Any]:
        return [row.get(column) for column in self._columns.values()]

    def _checked_row(self, line: str, folder: Root, seen: dict[str, int], number: int) -> dict[str, Any] | str:
        """Return a row, or what is wrong with it."""
        try:
            row = json.loads(line)
        except (RecursionError, ValueError) as error:
            return f"is not JSON: {error}"
        if not isinstance(row, dict):
            return f"is a {type(row).__name__}; expected an object"
        wanted = [self._columns.get(name, name) for name in self._written]
        missing = next((name for name in wanted if name not in row), None)
        if missing is not None:
            return f"lacks {missing!r}"
        for path in self._paths(row):
            if not isinstance(path, str):
                return f"a path is a {type(path).__name__}, not text"
            fault = path_fault(path) or folder.path_fault(path)
            if fault is not None:
                return f"{show(path)}: {fault}"
            if path in seen:
                return f"{show(path)} is already listed in line {seen[path]}"
        seen.update(dict.fromkeys(self._paths(row), number))
        return row

    def __len__(self) -> int:
        return len(self._lines)

    def name(self, index: int, /) -> str:
        # docstring inherited
        path = next(iter(self._paths(json.loads(self._lines[index]))), None)
        return f"{ROWS_FILE} line {self._numbers[index]}{'' if path is None else f' ({show(path)})'}"

    def size(self, index: int, /) -> int:
        # docstring inherited
        return self._sizes[index]

    def strata(self) -> Iterator[tuple[str, Any]]:
        """Yield the key and the label of each item."""
        for index, line in enumerate(self._lines):
            row = json.loads(line)
            yield str(row.get("key", index)), row.get("label")

    def read(self, index: int, /) -> Record:
        # docstring inherited
        row = json.loads(self._lines[index])
        record: Record = {}
        for name, declared in self._written.items():
            column = self._columns.get(name)
            try:
                record[name] = (
                    self._inline(row[name], declared) if column is None else self._file(row[column], declared)
                )
            except (ValueError, TypeError, OverflowError, EOFError) as error:
                raise BadItem(f"its {name} cannot be stored as {declared.kind}: {error}") from None
        try:
            for image in pictures(self.fields):
                set_verdict(record, image, _damage_of_row(row, record, image))
        except KeyError as error:
            raise BadItem(f"its row has a finding of a damaged picture, and lacks {error}") from None
        return record

    def _file(self, path: str, declared: Field) -> bytes | Array:
        try:
            data = read_file(os.path.join(self._root, path))
        except BadItem as error:
            raise BadItem(f"its file {show(path)} {error}") from None
        if declared.kind != "array":
            return data
        loaded: Array = np.load(io.BytesIO(data), allow_pickle=False)
        return loaded

    def _inline(self, value: Any, declared: Field) -> Any:
        if declared.kind == "float" and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if declared.kind in _TYPES and type(value) is not _TYPES[declared.kind]:
            raise ValueError(f"it is {json.dumps(value)[:60]}")
        if declared.kind != "array":
            return value
        given = np.array(value)
        if given.size and given.dtype.kind not in _ACCEPTED[np.dtype(declared.dtype).kind]:
            raise ValueError(f"it is {json.dumps(value)[:60]}, and its values are {declared.dtype}")
        found = np.array(value, declared.dtype)
        return found if found.size else found.reshape(0, *(size or 0 for size in (declared.shape or (0,))[1:]))


def _load_description(file: str) -> tuple[dict[str, Field], Mapping[str, JSON], dict[str, str]]:
    """Return the fields, the attributes, and the columns of paths, from ``storeds.json``."""
    try:
        with open(file, "rb") as opened:
            found: Any = json.loads(opened.read().removeprefix(b"\xef\xbb\xbf"))
    except OSError as error:
        raise StoreNotFoundError(f"{show(file)} cannot be read: {error.strerror}") from None
    except (RecursionError, ValueError) as error:
        raise FormatError(f"{show(file)} is not JSON: {error}") from None
    try:
        if found["version"] != VERSION:
            raise FormatError(
                f"{show(file)} has version {found['version']!r}, and this storeds reads {VERSION}; update it"
            )
        fields = fields_from_json(found["fields"])
        columns = {str(name): str(column) for name, column in found["files"].items()}
        attrs: Mapping[str, JSON] = dict(found["attrs"])
    except (KeyError, TypeError, AttributeError, ConfigError) as error:
        raise FormatError(f"{show(file)} is not as storeds export writes it: {error}") from None
    for name, declared in fields.items():
        if name not in columns and not is_inline(declared):
            raise FormatError(f"{show(file)}: field {name!r} and files do not fit together; export the store again")
    return fields, attrs, columns
