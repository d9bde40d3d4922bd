"""The sources of a stream: what may be given, what a pattern stands for, and whether samples of all are alike."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias

import xxhash

from storeds._globs import glob_of
from storeds.concatenated import ConcatenatedBackend, check_same_classes
from storeds.dataset import StoreDataset
from storeds.errors import ConfigError
from storeds.protocols import Backend
from storeds.source import Source
from storeds.stores import open_backend

__all__ = ["SourceLike", "check_alike", "listed", "seed_of", "single"]

SourceLike: TypeAlias = "str | os.PathLike[str] | Backend | Source | StoreDataset"


def listed(sources: SourceLike | Iterable[SourceLike]) -> list[SourceLike]:
    """Return one source, or several, as a list; raises ConfigError."""
    if isinstance(sources, (str, os.PathLike, Source, StoreDataset, Backend)):
        return [sources]
    if isinstance(sources, AbstractSet):
        raise ConfigError("sources have an order, and a set has none: give a list")
    if isinstance(sources, Mapping):
        raise ConfigError("a mapping is no source: give Source.parse(mapping), or its URLs as a list")
    if not isinstance(sources, Iterable):
        raise ConfigError(f"sources are URLs, paths, backends, Sources or StoreDatasets, not {type(sources).__name__}")
    return list(sources)


def single(
    sources: Sequence[SourceLike], arguments: Mapping[str, Any]
) -> Iterator[tuple[SourceLike, Mapping[str, Any]]]:
    """Yield each source with the arguments of its dataset; a pattern is the files that match, which are open already."""
    opening = {"layout": arguments.get("layout"), **(arguments.get("options") or {})}
    others = {name: value for name, value in arguments.items() if name not in ("layout", "options")}
    for source in sources:
        if not isinstance(source, (str, os.PathLike)) or glob_of(os.fspath(source)) is None:
            yield source, arguments
            continue
        whole = open_backend(source, **opening)
        # A file of exactly that name may have come since.
        members = whole.members() if isinstance(whole, ConcatenatedBackend) else [whole]
        yield from ((member, others) for member in members)


def seed_of(seed: int | None, number: int) -> int | None:
    """Return the seed of a source's samples."""
    if seed is None or number == 0:
        return seed
    return xxhash.xxh3_64_intdigest(f"{seed}/source/{number}".encode()) >> 1  # fits into an int64


def check_alike(first: StoreDataset, other: StoreDataset) -> None:
    """Raise ConfigError unless the samples of both can stand in one batch, and their labels mean the same."""
    for what, one, two in zip(("fields", "kinds", "as_dict"), _looks(first), _looks(other), strict=True):
        if one != two:
            raise ConfigError(
                f"the samples of one stream are alike: {what} are {one} in {first.url}, {two} in {other.url}"
            )
    if first.reader.target is not None:
        check_same_classes(first.backend, other.backend)


def _looks(dataset: StoreDataset) -> tuple[Any, ...]:
    stored = dataset.backend.meta.fields
    kinds = [(stored[name].kind, stored[name].dtype) if name in stored else name for name in dataset.reader.fields]
    return dataset.reader.fields, kinds, dataset.as_dict
