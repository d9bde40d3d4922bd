"""Finds the parts of a table: Parquet and Arrow files of a folder, each in a split, or 🤗 datasets in memory."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storeds._utils.text import some
from storeds.errors import ConfigError, FormatError, MissingDependencyError, StoreNotFoundError
from storeds.layouts.files.rows import File
from storeds.layouts.files.walk import is_hidden, show
from storeds.protocols import JSON

__all__ = ["Part", "find_tables", "part_of_dataset", "part_of_file"]

_BATCH = 32  # rows
_SHARD = re.compile(r"(.+?)-\d{5}-of-\d{5}(-[0-9a-f]+)?\.parquet")
_SPLITS = ("train", "validation", "valid", "val", "dev", "test")


@dataclass(frozen=True)
class Part:
    """Some rows of a table.

    Parameters
    ----------
    name : str
        For messages.
    schema : pyarrow.Schema
    count : int
    state : JSON
        Changes when the rows change.
    batches : callable
        Yields Arrow batches of some columns.
    features : mapping
        What 🤗 datasets noted about the columns, by column.
    """

    name: str
    schema: Any
    count: int
    state: JSON
    batches: Callable[[list[str]], Iterator[Any]]
    features: Mapping[str, Any]

    @property
    def class_names(self) -> dict[str, list[str]]:
        """The names of each ClassLabel by column."""
        return {name: feature["names"] for name, feature in self.features.items() if feature.get("names")}


def _noted_features(schema: Any) -> Mapping[str, Any]:
    """Return what 🤗 datasets noted about the columns of an Arrow schema."""
    try:
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        return {name: noted for name, noted in features.items() if isinstance(noted, dict)}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def part_of_dataset(dataset: Any) -> Part:
    """Return the rows of a ``datasets.Dataset``, as it stores them."""
    arrow = dataset.with_format("arrow")  # it decodes no image and applies no transform

    def batches(columns: list[str]) -> Iterator[Any]:
        return arrow.select_columns(columns).iter(_BATCH)  # type: ignore[no-any-return]  # datasets is optional

    schema, state = dataset.features.arrow_schema, str(dataset._fingerprint)
    return Part("the dataset", schema, len(dataset), state, batches, _noted_features(schema))


def part_of_file(path: str) -> Part:
    """Return the rows of a Parquet or Arrow file; raises FormatError and MissingDependencyError."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependencyError(
            f"Parquet and Arrow files need pyarrow, which cannot be imported ({error}): pip install 'storeds[hf]'"
        ) from error

    def opened() -> Any:
        """Return a Parquet file, or an Arrow table of the mapped file."""
        try:
            with open(path, "rb") as file:
                head = file.read(6)
            if head.startswith(b"PAR1"):
                return pyarrow.parquet.ParquetFile(path)
            mapped = pyarrow.memory_map(path)
            return (pyarrow.ipc.open_file if head == b"ARROW1" else pyarrow.ipc.open_stream)(mapped).read_all()
        except (OSError, pyarrow.ArrowException) as error:
            raise FormatError(f"{show(path)} cannot be read as a table: {error}") from None

    def batches(columns: list[str]) -> Iterator[Any]:
        file = opened()
        try:
            if isinstance(file, pyarrow.Table):
                yield from file.select(columns).to_batches(_BATCH)
            else:
                yield from file.iter_batches(_BATCH, columns=columns)
        except (OSError, pyarrow.ArrowException) as error:
            raise FormatError(f"{show(path)} is damaged: {error}") from None

    file = opened()
    is_table = isinstance(file, pyarrow.Table)
    schema, count = (file.schema, file.num_rows) if is_table else (file.schema_arrow, file.metadata.num_rows)
    state: JSON = [os.path.basename(path), *File(path).state]
    return Part(show(path), schema, count, state, batches, _noted_features(schema))


def find_tables(path: str) -> dict[str, list[str]]:
    """Return the files of each split at `path`. A split without a name is ``""``.

    Raises
    ------
    StoreNotFoundError, ConfigError, FormatError
        Nothing exists there, it is not a table, or the folder contains several datasets.
    """
    if os.path.isfile(path):
        return {"": [path]}
    try:
        names = os.listdir(path)
    except OSError as error:
        raise StoreNotFoundError(f"no table at {show(path)}: {error.strerror}") from None
    if "dataset_dict.json" in names:
        splits = [os.path.basename(str(name)) for name in _load(path, "dataset_dict.json").get("splits") or []]
        return {name: _saved(os.path.join(path, name)) for name in splits}
    return {"": _saved(path)} if {"state.json", "dataset_info.json"} <= set(names) else _parquet(path)


def _load(folder: str, name: str) -> dict[str, Any]:
    try:
        return dict(json.loads(Path(folder, name).read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise FormatError(
            f"{show(os.path.join(folder, name))} cannot be read: {error}; save the dataset again"
        ) from None


def _saved(folder: str) -> list[str]:
    state = _load(folder, "state.json")
    if not isinstance(state.get("_data_files"), list) or state.get("_indices_data_files"):
        raise ConfigError(
            f"{show(folder)} was saved by an old version of 🤗 datasets; load it with datasets.load_from_disk and save it again"
        )
    return [os.path.join(folder, os.path.basename(str(item["filename"]))) for item in state["_data_files"]]


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
            f"{show(folder)}: {show(os.path.basename(found[''][0]))} names no split, and others name "
            f"{', '.join(filter(None, found))}; pack them separately"
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
    return next((each for each in (name.removesuffix(".parquet"), os.path.basename(folder)) if each in _SPLITS), "")
