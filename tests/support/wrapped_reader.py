"""A plug-in's reader around one of storeds, which subclasses change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from storeds import Backend, Record, SampleContext

__all__ = ["WrappedReader"]


@dataclass(frozen=True)
class WrappedReader:
    """What `storeds.Reader` and `storeds.plugins.ReaderSpec` ask for, and nothing else."""

    spec: Any
    inner: Any = None

    def bind(self, backend: Backend, /) -> Self:
        """Return a reader of this store."""
        return replace(self, inner=self.spec.bind(backend))

    @property
    def fields(self) -> tuple[str, ...]:
        """The elements of a sample."""
        return tuple(self.inner.fields)

    @property
    def stored(self) -> tuple[str, ...]:
        """The stored fields that `build` needs."""
        return tuple(self.inner.stored)

    @property
    def data(self) -> Any:
        """The element that ``transform`` applies to."""
        return self.inner.data

    @property
    def target(self) -> Any:
        """The element that ``target_transform`` applies to."""
        return self.inner.target

    def __len__(self) -> int:
        return len(self.inner)

    def locate(self, index: int, context: SampleContext, /) -> Sequence[int]:
        """Return the positions of the records of a sample."""
        positions: Sequence[int] = self.inner.locate(index, context)
        return positions

    def build(self, records: Sequence[Record], context: SampleContext, /) -> Any:
        """Return the sample."""
        return self.inner.build(records, context)
