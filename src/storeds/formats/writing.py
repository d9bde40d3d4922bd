"""What all formats share that `export` writes: the names of files, the fields of each role, and boxes in another form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import numpy as np

from storeds._utils.text import some
from storeds.errors import ConfigError
from storeds.layouts.files.walk import IMAGE_SUFFIXES
from storeds.pictures import read_picture_header
from storeds.pictures.formats import format_of_picture
from storeds.protocols import Array, Field, Meta, Record
from storeds.records.annotations import box_edges, check_values
from storeds.records.shapes import is_mask

__all__ = [
    "HOW_TO_DECLARE",
    "Differences",
    "ExportFolder",
    "Exporter",
    "FileNames",
    "boxes_as",
    "check_counts",
    "checked_size",
    "fields_of",
    "image_field",
    "one_field",
    "picture_suffix",
]

_SUFFIXES = {
    "PNG": ".png",
    "GIF": ".gif",
    "BMP": ".bmp",
    "TIFF": ".tif",
    "WebP": ".webp",
    "JPEG 2000": ".jp2",
    "AVIF": ".avif",
}
HOW_TO_DECLARE = "if a field has this meaning, declare it in a copy: storeds convert SOURCE TARGET --role FIELD=ROLE"
_LONGEST = 255  # bytes of a file name
_LONGEST_PATH = 2048  # bytes of a key: systems allow 4,096 for a path, of which the folder takes some


class Differences(NamedTuple):
    """What an export lacks, and what differs in it, as in `Exported`."""

    left_out: Mapping[str, str]
    notes: tuple[str, ...]


class Exporter(Protocol):
    """Writes the records of a store to a folder in one format. Its constructor raises ConfigError for an unfit store."""

    def add(self, position: int, record: Record, /) -> None:
        """Write a record; raises ValueError if it does not fit its roles."""

    def finish(self) -> Differences:
        """Write what is about all records."""


class ExportFolder:
    """The folder in which an export is built. It counts what is written.

    Parameters
    ----------
    path : Path
        An empty folder.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.files, self.bytes = path, 0, 0
        self._open: dict[str, BinaryIO] = {}

    def write(self, name: str, data: bytes | str) -> None:
        """Write a new file; `name` is relative to the folder, and text is stored as UTF-8."""
        self.append(name, data)
        self._open.pop(name).close()

    def append(self, name: str, data: bytes | str) -> None:
        """Write to the end of a file, which stays open."""
        if name not in self._open:
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            self._open[name] = open(path, "xb")  # noqa: SIM115  # `close` closes it
            self.files += 1
        self.bytes += self._open[name].write(data.encode() if isinstance(data, str) else data)

    def close(self) -> None:
        """Close all files."""
        while self._open:
            self._open.popitem()[1].close()


class FileNames:
    """Gives each record the name of its file: its key where that is possible, and else one made from it.

    A name never leaves its folder, and no two records get the same name. Keys of other forms are made safe: ``../a.jpg``
    becomes ``_/a.jpg``, and ``/data/a.jpg`` becomes ``data/a.jpg``.

    Parameters
    ----------
    folder : str
        What all names begin with: ``"images/"``.
    with_suffix : bool
        Append the suffix of its format to a name without the suffix of an image.
    beside : callable, optional
        Name of a file → that of another file beside it, which no two records may share either.
    """

    def __init__(
        self, folder: str = "", *, with_suffix: bool = True, beside: Callable[[str], str] | None = None
    ) -> None:
        self._folder, self._with_suffix, self._beside = folder, with_suffix, beside
        self._files: set[str] = set()
        self._others: set[str] = set()
        self._folders: set[str] = set()
        self._changed: list[str] = []

    def name(self, key: str | None, position: int, blob: bytes, *, suffix: str | None = None) -> str:
        """Return the name of the file of the record at `position`, below the folder.

        Parameters
        ----------
        key : str or None
            The record's key; None in a store without keys.
        position : int
        blob : bytes
            The picture, which gives the suffix.
        suffix : str, optional
            Replaces the suffix: ``".txt"``.
        """
        name = f"{position:08}" if key is None else _safe(key, position)
        added = ""
        if suffix is not None:
            name, added = _without_suffix(name), suffix
        elif self._with_suffix and not name.lower().endswith(IMAGE_SUFFIXES):
            added = picture_suffix(blob)
        wanted = None if key is None else f"{key if suffix is None else _without_suffix(key)}{added}"
        name = self._unused(f"{name}{added}", position)
        if key is not None and (not key or name != wanted):
            self._changed.append(key)
        self._files.add(name)
        if self._beside is not None:
            self._others.add(self._beside(name))
        parts = name.split("/")
        self._folders.update("/".join(parts[:end]) for end in range(1, len(parts)))
        return f"{self._folder}{name}"

    def _unused(self, name: str, position: int) -> str:
        """Return `name`, or one with the position in it if another file or folder has that name."""
        parts = name.split("/")
        if any("/".join(parts[:end]) in self._files for end in range(1, len(parts))):
            name = "_".join(parts)  # a file has the name of its folder
        while self._is_used(name):
            stem = _without_suffix(name)
            name = f"{stem}-{position:08}{name[len(stem) :]}"
        return name

    def _is_used(self, name: str) -> bool:
        is_shared = self._beside is not None and self._beside(name) in self._others
        return name in self._files or name in self._folders or is_shared

    def notes(self) -> tuple[str, ...]:
        """Return one sentence about keys that are not the name of their file, or nothing."""
        if not self._changed:
            return ()
        count = len(self._changed)
        return (
            f"{count:,} {'key is' if count == 1 else 'keys are'} no usable name for a file, or another file has it; these files "
            f"got other names: {some(map(repr, self._changed))}",
        )


def _safe(key: str, position: int) -> str:
    """Return a key as a path that stays in its folder."""
    parts = ["_" if part == ".." else part for part in key.replace("\0", "_").split("/") if part not in ("", ".")]
    is_long = len(key.encode()) > _LONGEST_PATH or any(len(part.encode()) > _LONGEST - 20 for part in parts)
    if not parts or is_long:
        return f"{position:08}{_suffix_of(key)}"
    return "/".join(parts)


def _suffix_of(name: str) -> str:
    return next((suffix for suffix in IMAGE_SUFFIXES if name.lower().endswith(suffix)), "")


def _without_suffix(name: str) -> str:
    suffix = _suffix_of(name)
    return name[: -len(suffix)] if suffix and not name.endswith(f"/{suffix}") else name


def picture_suffix(blob: bytes) -> str:
    """Return the usual suffix of a picture's format, ``.jpg`` for a JPEG; ``.bin`` for an unknown one."""
    return ".jpg" if blob.startswith(b"\xff\xd8") else _SUFFIXES.get(format_of_picture(blob), ".bin")


def fields_of(meta: Meta, role: str) -> list[str]:
    """Return the fields of a role, in order. A field of kind image without a role is an image, or a mask by its name."""
    found = []
    for name, declared in meta.fields.items():
        own = declared.role
        if own is None and declared.kind == "image":
            own = "mask" if is_mask(name) else "image"
        if own == role:
            found.append(name)
    return found


def one_field(meta: Meta, format: str, role: str, *, required: bool = True) -> str | None:
    """Return the only field of a role, None without one.

    Raises
    ------
    ConfigError
        There are several; or none, and `required` is True.
    """
    found = fields_of(meta, role)
    if len(found) > 1:
        raise ConfigError(
            f"format {format!r} has one field with role {role}, and the store has {len(found)}: {', '.join(found)}; copy the "
            "store with one of them"
        )
    if not found and required:
        fields = ", ".join(f"{name} ({declared.role or declared.kind})" for name, declared in meta.fields.items())
        raise ConfigError(f"format {format!r} needs a field with role {role}; the store has {fields}; {HOW_TO_DECLARE}")
    return found[0] if found else None


def image_field(meta: Meta, format: str) -> str:
    """Return the field of the pictures; raises ConfigError unless there is one, which holds files."""
    name = one_field(meta, format, "image")
    assert name is not None
    if meta.fields[name].kind != "image":
        raise ConfigError(
            f"format {format!r} writes pictures as files, and field {name!r} is of kind {meta.fields[name].kind}; format 'folder' "
            "(--format folder) keeps arrays"
        )
    return name


def boxes_as(format: str, boxes: Any, declared: Field, size: tuple[int, int]) -> Array:
    """Return boxes in another format, in pixels, as float64 (n, 4). In the format of the store, numbers do not change.

    Parameters
    ----------
    format : str
        ``xywh`` or ``cxcywh``.
    boxes : array or list
        As stored.
    declared : Field
        The declaration of their field.
    size : (int, int)
        Height and width of the image.
    """
    rows = np.asarray(boxes, np.float64).reshape(-1, 4)
    if declared.relative:
        rows = rows * np.array([size[1], size[0]] * 2, np.float64)
    have = declared.format or "xyxy"
    if have == format:
        return rows
    start, sides, _ = box_edges(rows, have)
    return np.concatenate([start if format == "xywh" else start + sides / 2, sides], axis=1)


def check_counts(rows: Mapping[str | None, Sized], count: int) -> None:
    """Raise ValueError if the rows of a field are not as many as the objects of its record. None names no field."""
    for name, values in rows.items():
        if name is not None and len(values) != count:
            raise ValueError(f"field {name!r} describes {len(values)} objects, and the record has {count}")


def checked_size(record: Record, image: str, fields: Mapping[str, Field], format: str) -> tuple[int, int]:
    """Return the height and width of a record's picture; raises ValueError if other values do not fit their roles and it."""
    header = read_picture_header(record[image])
    if header is None:
        raise ValueError(f"the size of its picture cannot be read, which format {format!r} needs")
    size = header.height, header.width
    check_values(record, fields, size)
    return size
