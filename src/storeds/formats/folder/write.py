"""Exports a store to folders: every picture as a file, and all other values in ``metadata.jsonl``. Nothing is left out."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np

from storeds.formats.folder.read import FIELDS_FILE, ROWS_FILE, VERSION, damage_to_row, is_inline
from storeds.formats.writing import (
    Differences,
    ExportFolder,
    FileNames,
    fields_of,
    picture_suffix,
)
from storeds.protocols import JSON, Meta, Record
from storeds.records.fields import fields_to_json
from storeds.records.verdict_fields import without_verdicts

__all__ = ["FolderExporter"]


class FolderExporter:
    """Writes the pictures of a store to folders, and one line of ``metadata.jsonl`` for each record.

    A store of images with labels gives one folder for each class. Others give ``images/``, ``masks/``, and one folder for
    each other field of pictures, bytes or large arrays.
    """

    def __init__(self, meta: Meta, out: ExportFolder) -> None:
        self._meta, self._out = meta, out
        self._fields = meta.fields
        named: Any = meta.attrs.get("classes")
        usable = isinstance(named, list) and all(isinstance(name, str) and _is_line(name) for name in named)
        self._classes: list[str] = list(named) if usable else []
        files = [name for name, declared in meta.fields.items() if not is_inline(declared)]
        pictures = [name for name in files if meta.fields[name].kind == "image"]
        masks = [name for name in fields_of(meta, "mask") if name in pictures]
        images = [name for name in pictures if name not in masks]
        self._first = next(iter(images), None)
        label = meta.fields.get("label")
        folders_of = {_folder_of(name) for name in self._classes}
        labelled = len(files) == 1 and files == images and bool(self._classes) and label is not None
        self._by_class = labelled and len(folders_of) == len(self._classes)
        self._has_masks = bool(masks)
        self._columns: dict[str, str] = {}  # field whose values are files → the column with their paths
        self._names: dict[str, FileNames] = {}
        folders: set[str] = set()
        for name in files:
            column = "file_name" if name == self._first else f"{name}_file_name"
            while column in meta.fields or column in self._columns.values():
                column += "_"
            self._columns[name] = column
            folder = "images/" if images == [name] else "masks/" if masks == [name] else f"{name}/"
            while folder in folders:
                folder = f"{folder[:-1]}_/"
            folders.add(folder)
            self._names[name] = FileNames("" if self._by_class else folder)

        out.append(ROWS_FILE, "")

    def add(self, position: int, record: Record) -> None:
        """Write the files of a record, and its row."""
        row: dict[str, JSON] = {}
        for name, declared in without_verdicts(self._fields).items():
            value = record[name]
            if name not in self._columns:
                row[name] = value.tolist() if declared.kind == "array" else value
                continue
            data = _npy(value) if declared.kind == "array" else bytes(value)
            path = self._path(name, record, position, data)
            self._out.write(path, data)
            row[self._columns[name]] = path
        # The path of the image comes first, as other readers of such files show it.
        first = {} if self._first is None else {self._columns[self._first]: row.pop(self._columns[self._first])}
        row = {**first, **row, **damage_to_row(record, self._fields)}
        self._out.append(ROWS_FILE, json.dumps(row, ensure_ascii=False) + "\n")

    def finish(self) -> Differences:
        """Write the fields, the attributes and the class names."""
        description = {
            "version": VERSION,
            "fields": fields_to_json(self._fields),
            "attrs": self._meta.attrs,
            "files": self._columns,
        }
        self._out.write(FIELDS_FILE, json.dumps(description, ensure_ascii=False, indent=1) + "\n")
        if self._has_masks and self._classes:
            self._out.write("classes.txt", "".join(f"{name}\n" for name in self._classes))
        notes = [note for names in self._names.values() for note in names.notes()]
        return Differences({}, tuple(notes))

    def _path(self, name: str, record: Record, position: int, data: bytes) -> str:
        key = record.get("key")
        key = key if isinstance(key, str) else None
        if self._by_class:
            key = self._in_class(key, record["label"], position)
        suffix = None if name == self._first else self._suffix(name, data)
        return self._names[name].name(key, position, data, suffix=suffix)

    def _suffix(self, name: str, data: bytes) -> str:
        kind = self._fields[name].kind
        return picture_suffix(data) if kind == "image" else ".npy" if kind == "array" else ".bin"

    def _in_class(self, key: str | None, label: Any, position: int) -> str:
        """Return the key in the folder of its class."""
        named = isinstance(label, int) and 0 <= label < len(self._classes)
        folder = _folder_of(self._classes[label] if named else f"label {label}")
        key = f"{position:08}" if key is None else key
        return key if key.startswith(f"{folder}/") else f"{folder}/{key}"


def _folder_of(name: str) -> str:
    """Return the folder of a class."""
    folder = name.replace("/", "_")
    return f"_{folder}" if folder.startswith(".") else folder


def _is_line(name: str) -> bool:
    return bool(name.strip()) and name == name.strip() and name.isprintable() and len(name.encode()) < 200


def _npy(value: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(value), allow_pickle=False)
    return buffer.getvalue()
