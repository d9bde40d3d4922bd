"""Makes samples: one storage call for all their records, then for each what the reader and the transforms make of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from storeds.backends.concatenated import ConcatenatedBackend
from storeds.backends.selection import Selection
from storeds.errors import DecodeError, RecordError, StoredsError, TransformError
from storeds.protocols import Backend, Reader, Record, SampleContext
from storeds.transforms import BoundTransform

__all__ = ["SamplePipeline", "SampleResult"]


class SampleResult(NamedTuple):
    """A sample, or the error that names its place, and the positions of the records that it was made of.

    A reader is asked for the positions once: one that draws them from a global generator would draw others.
    """

    sample: Any | RecordError
    positions: Sequence[int]


@dataclass(frozen=True)
class SamplePipeline:
    """Makes samples of one dataset. Thread-safe; pickles small.

    Parameters
    ----------
    view : Backend
        The store, or what ``where=`` selects of it.
    reader : Reader
        Bound to `view`.
    transforms : sequence of (str, BoundTransform)
        Element → what is applied to it.
    as_dict : bool
        Leave samples as dicts.
    """

    view: Backend
    reader: Reader[Any]
    transforms: Sequence[tuple[str, BoundTransform]]
    as_dict: bool

    def make(self, contexts: Sequence[SampleContext]) -> Iterator[SampleResult]:
        """Yield what is made for each context; all records are read at once.

        Raises
        ------
        UnavailableError
            The engine cannot be reached.
        """
        located = [self.reader.locate(context.index, context) for context in contexts]
        flat = [position for positions in located for position in positions]
        records = iter(self.view.get_many(flat, self.reader.stored))
        for positions, context in zip(located, contexts, strict=True):
            yield SampleResult(self._sample([next(records) for _ in positions], positions, context), positions)

    def _sample(self, records: list[Record | RecordError], positions: Sequence[int], context: SampleContext) -> Any:
        for record in records:
            if isinstance(record, RecordError):
                return record
        try:
            sample = self.reader.build(records, context)  # type: ignore[arg-type]  # errors were returned above
        except RecordError as error:
            # A stranger's own child of it may be made otherwise.
            kind = DecodeError if isinstance(error, DecodeError) else RecordError
            return self.placed(kind, positions, error.reason or str(error), error.kind, error.__cause__)
        except Exception as error:  # a fault of the reader's, which must not look like one of the data
            position = self._in_store(positions[0]) if positions else -1
            error.add_note(f"{type(self.reader).__name__} was given record {position} of {self.view.url}")
            raise
        for name, transform in self.transforms:
            try:
                sample[name] = transform(sample[name], context)
            except Exception as error:  # whatever a user's transform raises
                reason = f"transform {transform!r} failed on {name!r}: {_blame(error)}"
                return self.placed(TransformError, positions, reason, None, error)
        if self.as_dict or not isinstance(sample, dict):
            return sample
        return tuple(sample[name] for name in self.reader.fields)

    def placed(
        self,
        error: type[RecordError],
        positions: Sequence[int],
        reason: str,
        kind: str | None = None,
        cause: BaseException | None = None,
    ) -> RecordError:
        """Return an error of that class that names the place of the first of `positions` in the store."""
        position = self._in_store(positions[0]) if positions else -1
        made = error.at(self.view.url, position, reason + self._member(position), kind=kind)
        made.__cause__ = cause
        return made

    def _in_store(self, position: int) -> int:
        return int(self.view.positions[position]) if isinstance(self.view, Selection) else position

    def _member(self, position: int) -> str:
        """Return where the record lies, in words, where the store is many."""
        store = self.view.backend if isinstance(self.view, Selection) else self.view
        if position < 0 or not isinstance(store, ConcatenatedBackend):
            return ""
        place = store.place(position)
        return f" (record {place.position} of {place.url})"

    def with_key(self, error: RecordError, positions: Sequence[int]) -> RecordError:
        """Return `error`, about one of `positions`, with that record's own name, where the store has names.

        That takes a storage call.
        """
        if error.key is not None or "key" not in self.view.meta.fields:
            return error
        at = next((position for position in positions if self._in_store(position) == error.position), None)
        if at is None:
            return error
        (record,) = self.view.get_many([at], ("key",))
        if isinstance(record, RecordError):
            return error
        url = error.url or self.view.url
        named = type(error).at(url, self._in_store(at), error.reason, key=str(record["key"]), kind=error.kind)
        named.__cause__ = error.__cause__
        return named


def _blame(error: Exception) -> str:
    """Return what is told of a transform's exception; raises it where the sample is not to blame."""
    if isinstance(error, RecordError):
        return str(error)
    if isinstance(error, (StoredsError, MemoryError, torch.OutOfMemoryError)):
        raise error
    return f"{type(error).__name__}: {error}"
