"""Finds Parquet and Arrow files, as 🤗 datasets writes them, and reads their rows, one part in memory at a time."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from storeds._utils.text import some
from storeds.errors import ConfigError, FormatError, MissingDependencyError, StoreNotFoundError
from storeds.ops.packing.sources.base import Fingerprint, file_state, is_hidden, locate, show
from storeds.protocols import JSON

__all__ = ["SAVED_FILES", "TABLE_SUFFIXES", "TableFiles", "find_tables", "import_pyarrow"]

TABLE_SUFFIXES = (".parquet", ".arrow")
_SHARD = re.compile(r"(.+?)-\d{5}-of-\d{5}(-[0-9a-f]+)?\.parquet")
_SPLITS = ("train", "validation", "valid", "val", "dev", "test")
SAVED_FILES = ("state.json", "dataset_info.json")
"""What ``save_to_disk`` of 🤗 datasets writes into the folder of one dataset."""


def import_pyarrow() -> Any:
    """Return the module pyarrow; raises MissingDependencyError."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependencyError(
            f"Parquet and Arrow files need pyarrow, which cannot be imported ({error}): pip install 'storeds[hf]'"
        ) from error
    return pyarrow


def find_tables(path: str) -> dict[str, list[str]]:
    """Return the files of each split at `path`. A split without a name is ``""``.

    Raises
    ------
    StoreNotFoundError, ConfigError, FormatError
        Nothing exists there, it is not a table, or the folder contains several datasets.
    """
    if os.path.isfile(path):
        return {"": [path]}
    if not os.path.isdir(path):
        raise StoreNotFoundError(f"nothing exists at {show(path)}")
    if os.path.isfile(os.path.join(path, "dataset_dict.json")):
        splits = _load(os.path.join(path, "dataset_dict.json")).get("splits") or []
        return {str(name): _saved(os.path.join(path, str(name))) for name in splits}
    if all(os.path.isfile(os.path.join(path, name)) for name in SAVED_FILES):
        return {"": _saved(path)}
    return _parquet(path)


def _load(path: str) -> dict[str, Any]:
    try:
        found = json.loads(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise FormatError(f"{show(path)} cannot be read: {error}; save the dataset again") from None
    if not isinstance(found, dict):
        raise FormatError(f"{show(path)} does not contain a JSON object; save the dataset again")
    return found


def _saved(folder: str) -> list[str]:
    state = _load(os.path.join(folder, "state.json"))
    listed = state.get("_data_files")
    if not isinstance(listed, list) or state.get("_indices_data_files") or state.get("_indices_files"):
        raise ConfigError(
            f"{show(folder)} was saved by an old version of 🤗 datasets; load it with datasets.load_from_disk and save it again"
        )
    files = [os.path.join(folder, os.path.basename(str(item["filename"]))) for item in listed]
    missing = [file for file in files if not os.path.isfile(file)]
    if missing:
        raise FormatError(
            f"{show(folder)} is incomplete: it lacks {some(map(os.path.basename, missing))}; copy it again"
        )
    return files


def _parquet(folder: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for top, inside, names in os.walk(folder):
        inside[:] = sorted(name for name in inside if not is_hidden(name))
        for name in sorted(names):
            if name.endswith(".parquet") and not is_hidden(name):
                found.setdefault(_split_of(top, name), []).append(os.path.join(top, name))
    if not found:
        raise ConfigError(f"{show(folder)} contains no Parquet files, and save_to_disk of 🤗 datasets did not write it")
    if "" in found and len(found) > 1:
        raise ConfigError(
            f"{show(folder)}: {show(os.path.basename(found[''][0]))} names no split, and others name {', '.join(filter(None, found))}; "
            "pack them separately"
        )
    for name, files in found.items():
        folders = sorted({os.path.dirname(file) for file in files})
        if len(folders) > 1:
            raise ConfigError(
                f"{show(folder)} contains several datasets, each with a split {name!r}: "
                f"{some(os.path.relpath(path, folder) for path in folders)}; pass one of these folders"
            )
    ranks = {name: rank for rank, name in enumerate(_SPLITS)}
    return {name: found[name] for name in sorted(found, key=lambda name: (ranks.get(name, len(ranks)), name))}


def _split_of(folder: str, name: str) -> str:
    shard = _SHARD.fullmatch(name)
    if shard is not None:
        return shard[1]
    stem = name.removesuffix(".parquet")
    if stem in _SPLITS:
        return stem
    above = os.path.basename(folder)
    return above if above in _SPLITS else ""


class TableFiles:
    """The rows of several Parquet or Arrow files of one schema.

    Parameters
    ----------
    paths : sequence of str
        The files in order.

    Notes
    -----
    Arrow files are mapped into memory. Parquet files are read one row group at a time. It pickles as the paths.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._pyarrow = import_pyarrow()
        self.paths = list(paths)
        self.schema: Any = None
        self._parts: list[tuple[int, int]] = []  # (file, part of it)
        counts: list[int] = []
        self._open: tuple[int, Any] = (-1, None)
        self._part: tuple[Any, Any] = (None, None)  # the (part, columns) in memory, and their table
        for number, path in enumerate(self.paths):
            schema, rows = self._inspect(number)
            if self.schema is not None and not schema.equals(self.schema):
                raise ConfigError(f"{show(path)} has other columns than {show(self.paths[0])}; pack them separately")
            self.schema = schema
            self._parts += [(number, part) for part in range(len(rows))]
            counts += rows
        self._ends = list(accumulate(counts))

    def _file(self, number: int) -> Any:
        if self._open[0] != number:
            path = self.paths[number]
            try:
                self._open = number, self._open_file(path)
            except (OSError, self._pyarrow.ArrowException) as error:
                raise FormatError(f"{show(path)} cannot be read as a table: {error}") from None
        return self._open[1]

    def _open_file(self, path: str) -> Any:
        with open(path, "rb") as file:
            head = file.read(6)
        if head.startswith(b"PAR1"):
            return self._pyarrow.parquet.ParquetFile(path)
        mapped = self._pyarrow.memory_map(path)
        ipc = self._pyarrow.ipc
        reader = ipc.open_file(mapped) if head == b"ARROW1" else ipc.open_stream(mapped)
        return reader.read_all().to_batches()  # views of the mapped file

    def _inspect(self, number: int) -> tuple[Any, list[int]]:
        file = self._file(number)
        if not isinstance(file, list):
            groups = file.metadata.num_row_groups
            return file.schema_arrow, [file.metadata.row_group(group).num_rows for group in range(groups)]
        schema = file[0].schema if file else self._pyarrow.schema([])
        return schema, [batch.num_rows for batch in file]

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def row(self, index: int, columns: Sequence[str]) -> dict[str, Any]:
        """Return some columns of one row."""
        part, at = locate(self._ends, index)
        wanted = part, tuple(columns)
        if self._part[0] != wanted:
            self._part = wanted, self._read(part, columns)
        found: dict[str, Any] = self._part[1].select(list(columns)).slice(at, 1).to_pylist()[0]
        return found

    def _read(self, part: int, columns: Sequence[str]) -> Any:
        number, at = self._parts[part]
        file = self._file(number)
        try:
            return file[at] if isinstance(file, list) else file.read_row_group(at, columns=list(columns))
        except (OSError, self._pyarrow.ArrowException) as error:
            raise FormatError(f"{show(self.paths[number])} is damaged: {error}") from None

    def column(self, name: str) -> Iterator[Any]:
        """Yield the values of one column, row by row, without reading the others."""
        for part in range(len(self._parts)):
            yield from self._read(part, [name]).column(name).to_pylist()

    def fingerprint(self) -> JSON:
        """Return a value that changes when the files change."""
        fingerprint = Fingerprint()
        for path in self.paths:
            fingerprint.add(os.path.basename(path), *file_state(path))
        return fingerprint.finish("table", len(self))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pyarrow": None, "_open": (-1, None), "_part": (None, None)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._pyarrow = import_pyarrow()
