"""Readers for which one record is one sample: which fields a sample has, and where they come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from storeds.errors import ConfigError, suggest
from storeds.protocols import Backend, Field, Record, SampleContext
from storeds.records.meta import Count

__all__ = ["INDEX", "RecordReader"]

INDEX = "index"


@dataclass(frozen=True)
class RecordReader(ABC):
    """Base of readers that make sample *i* from record *i*.

    Parameters
    ----------
    fields : sequence of str, optional
        The sample's elements, in order: fields of the store, and ``"index"`` for the sample's own index, where the store
        has no field of that name.
    """

    # Elements that the reader makes where the store has no field that is called so.
    makes: ClassVar[tuple[str, ...]] = (INDEX,)
    # What binding sets: no options for a user.
    internal: ClassVar[tuple[str, ...]] = ("count", "kinds")

    fields: tuple[str, ...] = ()
    count: int = 0
    kinds: tuple[Field, ...] = ()
    _made: tuple[str, ...] | None = None

    @abstractmethod
    def _choose(self, fields: dict[str, Field]) -> tuple[str, ...]:
        """Return the elements when the user named none; raises ConfigError if the store cannot serve this reader."""

    @abstractmethod
    def _value(self, name: str, field: Field, value: Any, context: SampleContext) -> Any:
        """Return the element `name` from a stored value."""

    @property
    def made(self) -> tuple[str, ...]:
        """The elements that are not read from the store."""
        return self.makes if self._made is None else self._made

    @property
    def stored(self) -> tuple[str, ...]:
        # docstring inherited
        return tuple(name for name in self.fields if name not in self.made)

    @property
    def data(self) -> str | None:
        # docstring inherited
        return self.stored[0] if self.stored else None

    @property
    def target(self) -> str | None:
        # docstring inherited
        others = [name for name in self.fields if name not in (*self.made, self.data, "key")]
        return "label" if "label" in others else others[0] if others else None

    def bind(self, backend: Backend, /) -> Self:
        # docstring inherited
        declared = dict(backend.meta.fields)
        made = tuple(name for name in self.makes if name not in declared)
        fields = tuple(self.fields) or self._choose(declared)
        for name in fields:
            if name not in self.makes and name not in declared:
                known = [*declared, *made]
                raise ConfigError(f"{backend.url} has no field {name!r}; {suggest(name, known, 'fields')}")
        if len(set(fields)) != len(fields):
            raise ConfigError(f"fields {fields} name an element twice")
        kinds = tuple(declared.get(name, Field("int")) for name in fields)
        return replace(self, fields=fields, count=Count(len(backend)), kinds=kinds, _made=made)

    def __len__(self) -> int:
        return self.count

    def locate(self, index: int, context: SampleContext, /) -> Sequence[int]:
        # docstring inherited
        return (index,)

    def build(self, records: Sequence[Record], context: SampleContext, /) -> dict[str, Any]:
        # docstring inherited
        record = records[0]
        return {
            name: context.index if name in self.made else self._value(name, field, record[name], context)
            for name, field in zip(self.fields, self.kinds, strict=True)
        }
