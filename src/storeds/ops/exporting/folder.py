"""Exports a store to folders: every picture as a file, and all other values in ``metadata.jsonl``. Nothing is left out."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np

from storeds.ops.common import ProgressHook
from storeds.ops.exporting.base import (
    Differences,
    ExportFolder,
    FileNames,
    doubled_notes,
    fields_of,
    numbered_records,
    picture_suffix,
)
from storeds.ops.packing.sources.exported import FIELDS_FILE, ROWS_FILE, VERSION, damage_to_row, is_inline
from storeds.protocols import JSON, Backend, Meta, Record
from storeds.records.fields import fields_to_json, without_verdicts

__all__ = ["export_folder"]

_CLASSES = "classes.txt"


def export_folder(backend: Backend, out: ExportFolder, progress: ProgressHook | None) -> Differences:
    """Write the pictures of a store to folders, and one line of ``metadata.jsonl`` for each record.

    A store of images with labels gives one folder for each class. Others give ``images/``, ``masks/``, and one folder for
    each other field of pictures, bytes or large arrays.
    """
    layout = _Layout(backend.meta)
    with out.create(ROWS_FILE) as file:
        for position, record in numbered_records(backend, progress):
            line = json.dumps(layout.row(record, position, out), ensure_ascii=False)
            file.write(f"{line}\n".encode())
    description = {
        "version": VERSION,
        "fields": fields_to_json(backend.meta.fields),
        "attrs": backend.meta.attrs,
        "files": layout.columns,
    }
    out.write(FIELDS_FILE, json.dumps(description, ensure_ascii=False, indent=1) + "\n")
    notes = layout.notes()
    if layout.has_masks and layout.classes:
        out.write(_CLASSES, "".join(f"{name}\n" for name in layout.classes))
        notes += doubled_notes(layout.classes, _CLASSES)
    return Differences({}, notes)


class _Layout:
    """Which file and which column of ``metadata.jsonl`` hold each field.

    Parameters
    ----------
    meta : Meta

    Attributes
    ----------
    columns : dict
        Field whose values are files → the column with their paths.
    classes : list of str
        The class names, if they can be the names of folders or the lines of a file.
    has_masks : bool
        Whether a field holds masks as pictures.
    """

    def __init__(self, meta: Meta) -> None:
        self._fields = meta.fields
        named: Any = meta.attrs.get("classes")
        usable = isinstance(named, list) and all(isinstance(name, str) and _is_line(name) for name in named)
        self.classes: list[str] = list(named) if usable else []
        files = [name for name, declared in meta.fields.items() if not is_inline(declared)]
        pictures = [name for name in files if meta.fields[name].kind == "image"]
        masks = [name for name in fields_of(meta, "mask") if name in pictures]
        images = [name for name in pictures if name not in masks]
        self._first = next(iter(images), None)
        label = meta.fields.get("label")
        folders_of = {_folder_of(name) for name in self.classes}
        labelled = len(files) == 1 and files == images and bool(self.classes) and label is not None
        self._by_class = labelled and len(folders_of) == len(self.classes)
        self._shared = labelled and not self._by_class
        self.has_masks = bool(masks)
        self.columns: dict[str, str] = {}
        self._names: dict[str, FileNames] = {}
        folders: set[str] = set()
        for name in files:
            column = "file_name" if name == self._first else f"{name}_file_name"
            while column in meta.fields or column in self.columns.values():
                column += "_"
            self.columns[name] = column
            folder = "images/" if images == [name] else "masks/" if masks == [name] else f"{name}/"
            while folder in folders:
                folder = f"{folder[:-1]}_/"
            folders.add(folder)
            self._names[name] = FileNames("" if self._by_class else folder)

    def row(self, record: Record, position: int, out: ExportFolder) -> dict[str, JSON]:
        """Write the files of a record, and return its row."""
        row: dict[str, JSON] = {}
        for name, declared in without_verdicts(self._fields).items():
            value = record[name]
            if name not in self.columns:
                row[name] = value.tolist() if declared.kind == "array" else value
                continue
            data = _npy(value) if declared.kind == "array" else bytes(value)
            path = self._path(name, record, position, data)
            out.write(path, data)
            row[self.columns[name]] = path
        # The path of the image comes first, as other readers of such files show it.
        first = {} if self._first is None else {self.columns[self._first]: row.pop(self.columns[self._first])}
        return {**first, **row, **damage_to_row(record, self._fields)}

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
        named = isinstance(label, int) and 0 <= label < len(self.classes)
        folder = _folder_of(self.classes[label] if named else f"label {label}")
        key = f"{position:08}" if key is None else key
        return key if key.startswith(f"{folder}/") else f"{folder}/{key}"

    def notes(self) -> tuple[str, ...]:
        """Return sentences about files that are not named by their key or by their class."""
        shared = "images are not in a folder for each class, because the names of several classes give one folder"
        return (
            *(note for names in self._names.values() for note in names.notes()),
            *([f"{shared}; metadata.jsonl has their labels"] if self._shared else ()),
        )


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
