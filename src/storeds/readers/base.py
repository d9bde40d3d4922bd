"""The base of readers for which one record is one sample: it decides which fields a sample has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from storeds.errors import ConfigError, suggest
from storeds.protocols import Backend, Field, Record, SampleContext
from storeds.records.fields import Count

__all__ = ["INDEX", "RecordReader"]

INDEX = "index"


@dataclass(frozen=True)
class RecordReader(ABC):
    """Base of readers that build sample *i* from record *i*. A subclass defines `_choose` and `_value`.

    Parameters
    ----------
    fields : sequence of str, optional
        Elements of a sample, in order: fields of the store, and ``"index"`` for the index of the sample, unless the
        store has a field of that name.
    """

    # Elements that the reader computes, unless the store has a field of that name.
    computes: ClassVar[tuple[str, ...]] = (INDEX,)
    # Set by `bind`; not options for users.
    internal: ClassVar[tuple[str, ...]] = ("count", "kinds")

    fields: tuple[str, ...] = ()
    count: int = 0
    kinds: tuple[Field, ...] = ()
    _computed: tuple[str, ...] | None = None

    @abstractmethod
    def _choose(self, fields: dict[str, Field]) -> tuple[str, ...]:
        """Return the default elements; raise ConfigError if the reader cannot read this store."""

    @abstractmethod
    def _value(self, name: str, field: Field, value: Any, context: SampleContext) -> Any:
        """Return element `name`, built from its stored value."""

    @property
    def computed(self) -> tuple[str, ...]:
        """The elements that the reader computes."""
        return self.computes if self._computed is None else self._computed

    @property
    def stored(self) -> tuple[str, ...]:
        # docstring inherited
        return tuple(name for name in self.fields if name not in self.computed)

    @property
    def data(self) -> str | None:
        # docstring inherited
        return self.stored[0] if self.stored else None

    @property
    def target(self) -> str | None:
        # docstring inherited
        others = [name for name in self.fields if name not in (*self.computed, self.data, "key")]
        return "label" if "label" in others else others[0] if others else None

    def bind(self, backend: Backend, /) -> Self:
        # docstring inherited
        declared = dict(backend.meta.fields)
        computed = tuple(name for name in self.computes if name not in declared)
        fields = tuple(self.fields) or self._choose(declared)
        for name in fields:
            if name not in self.computes and name not in declared:
                known = [*declared, *computed]
                raise ConfigError(f"{backend.url} has no field {name!r}; {suggest(name, known, 'fields')}")
        if len(set(fields)) != len(fields):
            raise ConfigError(f"fields {fields} name an element twice")
        kinds = tuple(declared.get(name, Field("int")) for name in fields)
        return replace(self, fields=fields, count=Count(len(backend)), kinds=kinds, _computed=computed)

    def __len__(self) -> int:
        return self.count

    def locate(self, index: int, context: SampleContext, /) -> Sequence[int]:
        # docstring inherited
        return (index,)

    def build(self, records: Sequence[Record], context: SampleContext, /) -> dict[str, Any]:
        # docstring inherited
        record = records[0]
        return {
            name: context.index if name in self.computed else self._value(name, field, record[name], context)
            for name, field in zip(self.fields, self.kinds, strict=True)
        }
