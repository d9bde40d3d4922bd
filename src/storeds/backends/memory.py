"""The reference engine: stores that live in this process's memory, for tests, examples and comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from storeds._utils.locations import StoreURL, redact
from storeds.backends.base import BackendOptions, StoreBackend, parse_options
from storeds.backends.writer import COMMIT_EVERY, EncodedRecord, StoreWriter, other_plan, target_exists
from storeds.errors import ClosedError, ConfigError, RecordError, StoreExistsError, StoreNotFoundError, UnavailableError
from storeds.protocols import JSON, Array, Field, Meta, Record
from storeds.records.columns import column_of
from storeds.records.fields import fields_to_json

__all__ = ["MemoryBackend", "MemoryWriter"]


@dataclass(frozen=True)
class _Store:
    meta: Meta
    records: list[tuple[bytes, bytes]]


@dataclass
class _Partial:
    plan: JSON
    records: list[tuple[bytes, bytes]]
    note: JSON = None


_STORES: dict[str, _Store] = {}
_PARTIAL: dict[str, _Partial] = {}


def _name(url: str) -> str:
    name = StoreURL.parse(url).path
    if not name or "?" in name or redact(url) != url:
        raise ConfigError(f"{redact(url)!r}: expected memory://name, without options or a password")
    return name


class MemoryBackend(StoreBackend):
    """Reads a store that `MemoryWriter` published in this process.

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
        self._setup(name, _STORES[name].meta)

    def _setup(self, name: str, meta: Meta) -> None:
        super().__init__(f"memory://{name}", meta)
        self._name, self._closed = name, False

    @staticmethod
    def open_writer(url: str, fields: Mapping[str, Any], **options: Any) -> MemoryWriter:
        """Return a `Writer` of a store in memory; see `storeds.open_writer`."""
        return MemoryWriter(url, fields, **options)

    def _recipe(self) -> tuple[Any, ...]:
        return self._name, self.meta

    @classmethod
    def _restore(cls, *recipe: Any) -> Self:
        backend = cls.__new__(cls)
        backend._setup(*recipe)
        return backend

    def _records(self) -> list[tuple[bytes, bytes]]:
        if self._closed:
            raise ClosedError(f"{self.url} was closed; open it again with open_backend")
        store = _STORES.get(self._name)
        if store is None or store.meta.build != self.meta.build:
            raise UnavailableError(f"{self.url} is not in this process any more, or was replaced; open it again")
        return store.records

    def _read(self, positions: list[int], fields: tuple[str, ...]) -> list[Record | RecordError]:
        records = self._records()
        return [self._codec.unpack(records[position][0]) for position in positions]

    def _column(self, name: str, field: Field) -> Array:
        return column_of(field, [self._codec.unpack(packed)[name] for packed, _ in self._records()])

    def close(self) -> None:
        # docstring inherited
        self._closed = True


class MemoryWriter(StoreWriter):
    """The `Writer` of ``memory://``."""

    def __init__(
        self,
        url: str,
        fields: Mapping[str, Any],
        *,
        overwrite: bool = False,
        resume: bool = False,
        commit_every: int = COMMIT_EVERY,
        check: bool = True,
        plan: JSON = None,
        **options: Any,
    ) -> None:
        parse_options(BackendOptions, {}, options, url)
        self._name, self._overwrite = _name(url), overwrite
        super().__init__(url, fields, commit_every, check=check)
        self._check_target()
        fresh = _Partial({"fields": fields_to_json(self.fields), "plan": plan}, [])
        left = _PARTIAL.get(self._name)
        if left is not None and resume:
            if left.plan != fresh.plan:
                raise other_plan(url, left.plan, fresh.plan)
            fresh = left
        elif left is not None and not overwrite:
            raise StoreExistsError(
                f"{url} was begun and not published; pass resume=True to continue or overwrite=True to start again"
            )
        self._partial = _PARTIAL[self._name] = fresh
        self.note = fresh.note
        self._resume_from(len(fresh.records), (digest for _, digest in fresh.records))

    def _check_target(self) -> None:
        if self._name in _STORES and not self._overwrite:
            raise target_exists(self.url, is_left=False)

    def _commit(self, batch: list[EncodedRecord], first: int) -> None:
        self._partial.records += [(sealed.packed, sealed.digest) for sealed in batch]

    def _save_note(self, note: JSON) -> None:
        self._partial.note = note

    def _publish(self, meta: Meta) -> None:
        self._check_target()
        _STORES[self._name] = _Store(meta, self._partial.records)
        del _PARTIAL[self._name]

    def _discard(self) -> None:
        _PARTIAL.pop(self._name, None)

    def _suspend(self) -> None:
        pass
