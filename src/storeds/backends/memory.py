"""The reference engine: stores that live in this process's memory, for tests, examples and comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from storeds._utils.redaction import redact
from storeds._utils.settings import parse_options
from storeds._utils.urls import StoreURL
from storeds.backends.base import BackendOptions, StoreBackend
from storeds.errors import (
    ClosedError,
    ConfigError,
    RecordError,
    StoreExistsError,
    StoreNotFoundError,
    UnavailableError,
    appeared,
)
from storeds.protocols import Array, Field, Meta, Record
from storeds.records.columns import column_of
from storeds.records.meta import meta_from_text

__all__ = ["MemoryBackend", "MemorySink"]


@dataclass(frozen=True)
class _Store:
    meta: Meta
    records: Sequence[bytes]  # each with its seal


@dataclass
class _Partial:
    kept: tuple[bytes, int] | None = None  # the note, and how many records it covers: replaced in one step
    records: list[bytes] = field(default_factory=list)
    writer: MemorySink | None = None


_STORES: dict[str, _Store] = {}
_PARTIAL: dict[str, _Partial] = {}


def _name(url: str) -> str:
    name = StoreURL.parse(url).path
    if not name or "?" in name or redact(url) != url:
        raise ConfigError(f"{redact(url)!r}: expected memory://name, without options or a password")
    return name


class MemoryBackend(StoreBackend):
    """Reads a store that a writer published in this process.

    Parameters
    ----------
    url : str
        ``memory://name``.

    Notes
    -----
    Another process sees the store only if it was forked after the store was published.
    """

    Options: ClassVar[type[BackendOptions]] = BackendOptions

    def __init__(self, url: str, **options: Any) -> None:
        parse_options(BackendOptions, {}, options, url)
        name = _name(url)
        if name not in _STORES:
            held = ", ".join(sorted(_STORES)) or "none"
            raise StoreNotFoundError(f"no store at {url}: this process holds {held}")
        super().__init__(f"memory://{name}", _STORES[name].meta)
        self._name, self._closed = name, False

    @staticmethod
    def sink(url: str, **options: Any) -> MemorySink:
        """Return the sink of a store in memory."""
        parse_options(BackendOptions, {}, options, url)
        return MemorySink(url)

    def _records(self) -> Sequence[bytes]:
        if self._closed:
            raise ClosedError(f"{self.url} was closed; open it again with open_backend")
        store = _STORES.get(self._name)
        if store is None or store.meta.build != self.meta.build:
            raise UnavailableError(f"{self.url} is not in this process any more, or was replaced; open it again")
        return store.records

    def _read(self, positions: list[int], fields: tuple[str, ...]) -> list[Record | RecordError]:
        records = self._records()
        return [self._codec.unpack(records[position][:-8]) for position in positions]

    def _column(self, name: str, field: Field) -> Array:
        return column_of(field, [self._codec.unpack(sealed[:-8])[name] for sealed in self._records()])

    def close(self) -> None:
        # docstring inherited
        self._closed = True


class MemorySink:
    """The `storeds.backends.writer.Sink` of ``memory://``."""

    errors: tuple[type[Exception], ...] = ()

    def __init__(self, url: str) -> None:
        self._name = _name(url)
        self.url = f"memory://{self._name}"
        self._partial: _Partial | None = None

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
        self._mine.records[first:] = packed
        self._mine.kept = note, first + len(packed)

    def scan(self) -> Iterator[bytes]:
        # docstring inherited
        return iter(self._mine.records)

    def finish(self, columns: Mapping[str, Array], meta: str, *, replace: bool) -> None:
        # docstring inherited
        if self.exists() and not replace:
            raise appeared(self.url)
        found, _ = meta_from_text(meta, self.url)
        _STORES[self._name] = _Store(found, tuple(self._mine.records))
        self.drop()

    def drop(self) -> None:
        # docstring inherited
        self._mine.kept = None
        self._mine.records.clear()

    def close(self) -> None:
        # docstring inherited
        partial = self._partial
        if partial is not None and partial.writer is self:
            if partial.kept is None and _PARTIAL.get(self._name) is partial:
                del _PARTIAL[self._name]
            partial.writer = None

    def explain(self, error: Exception) -> str:
        # docstring inherited
        return str(error)

    @property
    def _mine(self) -> _Partial:
        assert self._partial is not None
        return self._partial
