"""The source for folders that ``export`` with format ``folder`` wrote."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash

from storeds._utils.text import counted, some
from storeds.errors import ConfigError, FormatError, StoreNotFoundError
from storeds.layouts.files.rows import Bad, BadItem, Row, Rows, from_start
from storeds.layouts.files.walk import Root, Walk, show
from storeds.pictures import Verdict, set_verdict
from storeds.protocols import JSON, Array, Field, Record
from storeds.records.fields import fields_from_json
from storeds.records.verdict_fields import pictures, without_verdicts

__all__ = ["FIELDS_FILE", "ROWS_FILE", "VERSION", "damage_to_row", "exported", "is_inline"]

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


def exported(path: str | os.PathLike[str], *, allow_outside: bool = False) -> Rows:
    """Rows of a folder that ``storeds export --format folder`` wrote, with the fields and attributes of that store.

    Parameters
    ----------
    path : path
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
    root = Root(path, allow_outside=allow_outside)
    fields, attrs, columns = _load_description(os.path.join(root.path, FIELDS_FILE))
    images = pictures(fields)
    known = {columns.get(name, name) for name in fields} | {f"{image}_xxh3" for image in images}
    reader = _RowReader(root, without_verdicts(fields), columns, list(images), known)
    seen: dict[str, int] = {}

    def items() -> Iterator[Row | Bad]:
        seen.clear()
        try:
            with open(os.path.join(root.path, ROWS_FILE), encoding="utf-8-sig") as file:
                for number, line in enumerate(file, 1):
                    if line.strip():
                        yield reader.row(number, line, seen)
        except (OSError, UnicodeError) as error:
            raise FormatError(f"{show(root.path)}/{ROWS_FILE} cannot be read: {error}") from None

    def late_notes() -> Iterator[str]:
        for key, lines in sorted(reader.unknown.items()):
            number = counted(len(lines), "row")
            yield f"{key!r} is left out of {number} of {ROWS_FILE}, as {FIELDS_FILE} declares no such field"
        files = [each[0] for each in Walk(root).files("") if not isinstance(each, Bad)]
        unlisted = sorted(name for name in files if name not in seen)
        if unlisted:
            yield f"left out {counted(len(unlisted), 'picture')} that no row names: {some(map(show, unlisted))}"

    return Rows(fields=fields, attrs=attrs, items=from_start(items), finish=reader.finish, late_notes=late_notes)


@dataclass(frozen=True)
class _RowReader:
    """Reads lines of ``metadata.jsonl``.

    Parameters
    ----------
    root : Root
    fields : mapping of str to Field
        Without the verdicts.
    columns : mapping of str to str
        Field whose values are files → its column of paths.
    images : sequence of str
    known : set of str
        The keys that a row may have.

    Attributes
    ----------
    unknown : dict
        Another key → the lines that have it.
    """

    root: Root
    fields: Mapping[str, Field]
    columns: Mapping[str, str]
    images: Sequence[str]
    known: Collection[str]
    unknown: dict[str, set[int]] = field(default_factory=dict)

    def row(self, number: int, line: str, seen: dict[str, int]) -> Row | Bad:
        """Return the row of line `number`; `seen` has the lines of earlier paths."""
        name = f"{ROWS_FILE} line {number}"
        try:
            row = json.loads(line)
        except (RecursionError, ValueError) as error:
            return Bad(name, f"is not JSON: {error}")
        if not isinstance(row, dict):
            return Bad(name, f"is a {type(row).__name__}; expected an object")
        for key in row.keys() - self.known:
            self.unknown.setdefault(key, set()).add(number)
        missing = next((each for each in self.fields if self.columns.get(each, each) not in row), None)
        if missing is not None:
            return Bad(name, f"lacks {self.columns.get(missing, missing)!r}")
        values: dict[str, Any] = dict(row)
        for name_of, column in self.columns.items():
            path = row[column]
            fault = self.root.path_fault(path)
            if fault is None and path in seen:
                fault = f"is already listed in line {seen[path]}"
            if fault is not None:
                return Bad(name, f"{show(path)}: {fault}" if isinstance(path, str) else fault)
            values[name_of] = self.root.file(path, f"its file {show(path)}")
        paths = [row[column] for column in self.columns.values()]
        seen.update(dict.fromkeys(paths, number))
        return Row(f"{name} ({show(paths[0])})" if paths else name, values)

    def finish(self, values: Record) -> Record:
        """Return the record of a row whose files are read."""
        record: Record = {}
        for name, declared in self.fields.items():
            read = _loaded if name in self.columns else _inline
            try:
                record[name] = read(values[name], declared)
            except (ValueError, TypeError, OverflowError, EOFError) as error:
                raise BadItem(f"its {name} cannot be stored as {declared.kind}: {error}") from None
        try:
            for image in self.images:
                set_verdict(record, image, _damage_of_row(values, record, image))
        except KeyError as error:
            raise BadItem(f"its row has a finding of a damaged picture, and lacks {error}") from None
        return record


def _loaded(data: bytes, declared: Field) -> bytes | Array:
    if declared.kind != "array":
        return data
    loaded: Array = np.load(io.BytesIO(data), allow_pickle=False)
    return loaded


def _inline(value: Any, declared: Field) -> Any:
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
