"""The reference engine: stores that live in this process's memory, for tests, examples and comparison."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from storeds._utils.settings import parse_options
from storeds._utils.urls import StoreURL
from storeds.backends.engine import Engine
from storeds.backends.raw import BackendOptions, Opener, RawStore, Rows
from storeds.errors import (
    ConfigError,
    StoreExistsError,
    StoreNotFoundError,
    appeared,
)
from storeds.protocols import Array
from storeds.records.columns import text_offsets
from storeds.records.verifier import native_meta

__all__ = ["MEMORY", "MemorySink"]


@dataclass(frozen=True, eq=False)
class _Store:
    meta: str
    records: Sequence[bytes]  # each with its seal
    columns: Mapping[str, bytes]


@dataclass
class _Partial:
    kept: tuple[bytes, int] | None = None  # the note, and how many records it covers: replaced in one step
    records: list[bytes] = field(default_factory=list)
    writer: MemorySink | None = None


_STORES: dict[str, _Store] = {}
_PARTIAL: dict[str, _Partial] = {}


class _MemoryStore(RawStore):
    """A store that a writer published in this process."""

    reads_fields: ClassVar[bool] = True

    def __init__(self, store: _Store, url: str) -> None:
        self._store = store
        self.meta, self.verifier = native_meta(store.meta, url)

    def read(self, positions: list[int], fields: tuple[str, ...] | None) -> Rows:
        # docstring inherited
        rows = Rows.of_sealed(self._store.records[position] for position in positions)
        return rows if fields is None else Rows(rows.records)

    def column(self, name: str) -> Sequence[Sequence[bytes]]:
        # docstring inherited
        names = [name, text_offsets(name)] if self.meta.fields[name].kind == "str" else [name]
        return [[self._store.columns[each]] for each in names]


@dataclass(frozen=True)
class _MemoryOpener(Opener[_Store]):
    """Finds a store of this process. Another process has it only if it was forked after the store was published."""

    name: str

    @property
    def url(self) -> str:
        return f"memory://{self.name}"

    def key(self) -> Hashable:
        return "memory", id(self.open())

    def open(self) -> _Store:
        if self.name not in _STORES:
            held = ", ".join(sorted(_STORES)) or "none"
            raise StoreNotFoundError(f"no store at {self.url}: this process holds {held}")
        return _STORES[self.name]

    def close(self, handle: _Store, /) -> None:
        pass

    def is_current(self, handle: _Store, /) -> bool:
        return _STORES.get(self.name) is handle

    def attach(self, handle: _Store, /) -> _MemoryStore:
        return _MemoryStore(handle, self.url)


class MemorySink:
    """The `storeds.backends.writer.Sink` of ``memory://``."""

    errors: tuple[type[Exception], ...] = ()

    def __init__(self, name: str) -> None:
        self._name, self.url = name, f"memory://{name}"
        self._partial = _Partial()  # until `begin` takes the one of its name

    def exists(self) -> bool:
        # docstring inherited
        return self._name in _STORES

    def begin(self) -> bytes | None:
        # docstring inherited
        partial = _PARTIAL.setdefault(self._name, _Partial())
        if partial.writer is not None:
            raise StoreExistsError(
                f"{self.url} is being written by another writer of this process; publish, suspend or abort that one first"
            )
        self._partial = partial
        partial.writer = self
        if partial.kept is None:
            return None
        note, count = partial.kept
        del partial.records[count:]
        return note

    def put(self, first: int, packed: Sequence[bytes], note: bytes) -> None:
        # docstring inherited
        self._partial.records[first:] = packed
        self._partial.kept = note, first + len(packed)

    def scan(self) -> Iterator[bytes]:
        # docstring inherited
        return iter(self._partial.records)

    def finish(self, columns: Mapping[str, Array], meta: str, *, replace: bool) -> None:
        # docstring inherited
        if self.exists() and not replace:
            raise appeared(self.url)
        stored = {name: column.tobytes() for name, column in columns.items()}
        _STORES[self._name] = _Store(meta, tuple(self._partial.records), stored)
        self.drop()

    def drop(self) -> None:
        # docstring inherited
        self._partial.kept = None
        self._partial.records.clear()

    def close(self) -> None:
        # docstring inherited
        partial = self._partial
        if partial.writer is self:
            if partial.kept is None:
                _PARTIAL.pop(self._name, None)
            partial.writer = None

    def explain(self, error: Exception) -> str:
        # docstring inherited
        return str(error)


def _opener(url: str | StoreURL, **options: Any) -> _MemoryOpener:
    parsed = StoreURL.parse(url)
    parse_options(BackendOptions, {}, options, url)
    if not parsed.path or "?" in parsed.path or str(parsed) != parsed.text:
        raise ConfigError(f"{str(parsed)!r}: expected memory://name, without options or a password")
    return _MemoryOpener(parsed.path)


def _sink(url: str | StoreURL, **options: Any) -> MemorySink:
    return MemorySink(_opener(url, **options).name)


MEMORY = Engine(_opener, _sink)
"""The engine of ``memory://``."""
