"""Makes samples: reads records in one call, builds and transforms each, and applies the policy to bad ones."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from storeds._utils.permutation import permute, round_keys
from storeds.backends.view import place_text, position_in_whole, whole
from storeds.batching.buffers import BufferPool
from storeds.batching.collate import Skipped
from storeds.datasets.batch import Ask, Work
from storeds.datasets.counters import Event, Policy
from storeds.errors import (
    BadSamplesError,
    DecodeError,
    RecordError,
    StoredsError,
    TransformError,
)
from storeds.protocols import Array, Backend, Reader, Record, SampleContext
from storeds.readers.reader import read_rows
from storeds.records.samples import Sample
from storeds.transforms import BoundTransform, JointTransform
from storeds.transforms.tail import Tail

__all__ = ["MOST_IN_A_ROW", "SamplePipeline"]

_TIMED = 8  # one sample in so many has a clock around each transform, which takes 0.2 µs
# A store in which so many samples in a row are bad is not worth training on.
MOST_IN_A_ROW = 100

# Of images that a caller may keep: fresh memory for every image costs about as much as resizing it.
_IMAGES = BufferPool(limit=64, smallest=1 << 18)


class _Result(NamedTuple):
    """A sample, or the error that names its place, and the positions of its records."""

    sample: Any | RecordError
    positions: Sequence[int]


@dataclass(frozen=True)
class SamplePipeline:
    """Makes the samples of one dataset. Thread-safe; pickles small.

    Parameters
    ----------
    view : Backend
        The store, or what ``where=`` selects of it.
    reader : Reader
        Bound to `view`.
    transforms : sequence of (str, BoundTransform)
        Element → its transform.
    as_dict : bool
        Whether samples are dicts; tuples otherwise.
    policy : Policy
        What happens to bad samples.
    joint : JointTransform, optional
        Makes the elements of the `Sample` that the reader builds, before `transforms`.
    tails : mapping of str to Tail
        Element → the end of its transform, which a batch can do.
    """

    view: Backend
    reader: Reader[Any]
    transforms: Sequence[tuple[str, BoundTransform]]
    as_dict: bool
    policy: Policy
    joint: JointTransform | None
    tails: Mapping[str, Tail]

    def samples(
        self,
        contexts: Sequence[SampleContext],
        ask: Ask,
        work: Work,
        events: list[Event],
        known: RecordError | None = None,
    ) -> list[Any]:
        """Return the samples of `contexts`, with what the policy puts in the place of bad ones.

        Parameters
        ----------
        ask : Ask
            That for these samples.
        work : Work
            Where to add what this took.
        events : list of Event
            Where to append what happened, also before an error.
        known : RecordError, optional
            Of a record that was read already, and is not read again.

        Raises
        ------
        RecordError
            With ``raise``, the first bad sample.
        BadSamplesError
            No good sample was found to replace a bad one.
        UnavailableError
            The engine cannot be reached.
        """
        if not contexts:
            return []
        found: list[Event] = []
        results = self.make(contexts, work, known, whole=ask.tails != self.tails)
        try:
            return self._good_samples(results, contexts, ask, work, found)
        finally:
            events += self._with_keys(found)

    def _good_samples(
        self,
        results: Iterator[_Result],
        contexts: Sequence[SampleContext],
        ask: Ask,
        work: Work,
        events: list[Event],
    ) -> list[Any]:
        """Return samples after the policy; append what happened to `events`, also before an error."""
        samples: list[Any] = []
        policy = self.policy.on_error
        for context, (sample, positions) in zip(contexts, results, strict=True):
            if not isinstance(sample, RecordError):
                events += self._repairs(context, positions)
            elif policy == "raise":
                named = self._with_key(sample)
                events.append(_bad(named, context))
                raise named from sample.__cause__
            samples.append(sample)
        bad = [at for at, sample in enumerate(samples) if isinstance(sample, RecordError)]
        if not bad:
            return samples
        replacing = policy == "replace" or (ask.fill and len(bad) == len(samples))
        events += [_bad(samples[at], contexts[at], "replaced" if replacing else "skipped") for at in bad]
        if replacing:
            replacements = self._replacements([contexts[at] for at in bad], ask, work, events)
        else:
            replacements = [
                Skipped(contexts[at].index, samples[at].url, samples[at].position, samples[at].kind, samples[at].reason)
                for at in bad
            ]
        for at, sample in zip(bad, replacements, strict=True):
            samples[at] = sample
        return samples

    def make(
        self, contexts: Sequence[SampleContext], work: Work, known: RecordError | None = None, *, whole: bool = True
    ) -> Iterator[_Result]:
        """Yield the result for each context, whatever the policy; reads all records at once, without the `known` bad one."""
        began = time.perf_counter()
        bad: dict[int, RecordError] = {}
        if known is not None:  # of a column, so each sample is a record
            bad = {each.index: known for each in contexts if self._in_store(each.index) == known.position}
        found = read_rows(self.reader, self.view, contexts, bad)
        began = work.add_time("read", began)
        work.add_bytes(record for _, records in found for record in records)
        for at, ((positions, records), context) in enumerate(zip(found, contexts, strict=True)):
            sample = self._sample(records, positions, context, work, whole=whole, is_timed=at % _TIMED == 0)
            yield _Result(sample, positions)
        work.add_time("decode", began)

    def _sample(
        self,
        records: list[Record | RecordError],
        positions: Sequence[int],
        context: SampleContext,
        work: Work,
        *,
        whole: bool,
        is_timed: bool,
    ) -> Any:
        for record in records:
            if isinstance(record, RecordError):
                return record
        try:
            sample = self.reader.build(records, context)  # type: ignore[arg-type]  # errors were returned above
        except RecordError as error:
            # A plug-in's own subclass may take other arguments.
            kind = DecodeError if isinstance(error, DecodeError) else RecordError
            return self._error_at(kind, positions, error.reason or str(error), error.kind, error.__cause__)
        except Exception as error:  # a bug in the reader, which is no bad sample
            position = self._in_store(positions[0]) if positions else -1
            error.add_note(f"{type(self.reader).__name__} was given record {position} of {self.view.url}")
            raise
        if self.joint is not None or self.transforms:
            began = time.perf_counter()
            seconds = work.steps.setdefault("transform", {}) if is_timed else None
            sample = self._transformed(sample, positions, context, seconds)
            if whole and not isinstance(sample, RecordError):
                self._finish(sample)
            work.add_time("transform", began, within="decode")
            if isinstance(sample, RecordError):
                return sample
        if self.as_dict or not isinstance(sample, dict):
            return sample
        return tuple(sample[name] for name in self.reader.fields)

    def _transformed(
        self, sample: Any, positions: Sequence[int], context: SampleContext, seconds: dict[str, float] | None
    ) -> Any:
        """Return a sample after its transforms, or the error of a bad one; add what each takes to `seconds`, if there are any."""
        if self.joint is not None:
            sample = self._joined(sample, positions, context, seconds)
            if isinstance(sample, RecordError):
                return sample
        for name, transform in self.transforms:
            try:
                sample[name] = transform(sample[name], context, whole=False, seconds=seconds)
            except Exception as error:  # whatever a user's transform raises
                reason = f"transform {transform!r} failed on {name!r}: {_reason(error)}"
                return self._error_at(TransformError, positions, reason, None, error)
        return sample

    def _finish(self, sample: dict[str, Any]) -> None:
        """Do what is left to do for a sample that no batch of ours takes."""
        for name, tail in self.tails.items():
            image = sample[name]
            if tail.is_waiting(image):
                out = _IMAGES.empty(image.shape, torch.float32)
                sample[name] = tail(image.as_subclass(torch.Tensor), out).as_subclass(type(image))

    def _joined(
        self, sample: Sample, positions: Sequence[int], context: SampleContext, seconds: dict[str, float] | None
    ) -> dict[str, Any] | RecordError:
        """Return the elements of a sample after the transforms of whole samples, or the error of a bad one."""
        assert self.joint is not None
        try:
            return self.joint(sample, context, whole=False, seconds=seconds)
        except RecordError as error:  # of its values, such as a mask of another size
            return self._error_at(RecordError, positions, error.reason or str(error), error.kind, error.__cause__)
        except Exception as error:  # whatever a user's transform raises
            reason = f"transforms {self.joint!r} failed: {_reason(error)}"
            return self._error_at(TransformError, positions, reason, None, error)

    # --- Bad samples ---

    def _replacements(self, contexts: Sequence[SampleContext], ask: Ask, work: Work, events: list[Event]) -> list[Any]:
        """Return a good sample for each context: the first one in an order keyed by (seed, epoch, index)."""
        allowed = [None if ask.allowed is None else ask.allowed(context.index) for context in contexts]
        orders = [_other_indices(*each, len(self.reader)) for each in zip(contexts, allowed, strict=True)]
        found: list[Any] = [None] * len(contexts)
        pending = list(range(len(contexts)))
        for attempt in range(MOST_IN_A_ROW):
            if any(attempt == len(orders[at]) for at in pending):
                break
            tried = [replace(contexts[at], index=orders[at][attempt], notes=[]) for at in pending]
            for at, context, (sample, positions) in zip(
                pending, tried, self.make(tried, work, whole=ask.tails != self.tails), strict=True
            ):
                found[at] = sample
                if not isinstance(sample, RecordError):
                    events += self._repairs(context, positions)
            pending = [at for at in pending if isinstance(found[at], RecordError)]
            if not pending:
                return found
        at = min(pending, key=lambda at: len(orders[at]))
        tries = len(orders[at])
        last = f"the last: {_bad(self._with_key(found[at]), contexts[at]).text}" if tries else ""
        why = f"the {tries} others tried are bad too, {last}" if tries else "it is the only one"
        which = "" if allowed[at] is None else " of those that may come in its place, as the loader's plan says"
        raise BadSamplesError(
            f"no good sample can replace sample {contexts[at].index} of {self.view.url}: {why}{which}"
        )

    def _repairs(self, context: SampleContext, positions: Sequence[int]) -> list[Event]:
        """Return an event for each repair of a sample."""
        errors = [self._error_at(RecordError, positions, note.message, note.kind) for note in context.notes]
        return [replace(_bad(error, context), repaired=True) for error in errors]

    # --- Errors that name the place ---

    def _error_at(
        self,
        error: type[RecordError],
        positions: Sequence[int],
        reason: str,
        kind: str | None = None,
        cause: BaseException | None = None,
    ) -> RecordError:
        """Return an error of that class that names the place of the first of `positions` in the store."""
        position, named = -1, ""
        if positions:
            position, named = self._in_store(positions[0]), place_text(self.view, positions[0])
        placed = error.at(self.view.url, position, reason + named, kind=kind)
        placed.__cause__ = cause
        return placed

    def _in_store(self, position: int) -> int:
        return position_in_whole(self.view, position)

    def _with_key(self, error: RecordError) -> RecordError:
        """Return `error` with the key of its record, where the store has keys."""
        key = (
            None
            if error.position is None or error.key is not None
            else self._keys([error.position]).get(error.position)
        )
        if key is None or error.position is None:
            return error
        named = type(error).at(error.url or self.view.url, error.position, error.reason, key=key, kind=error.kind)
        named.__cause__ = error.__cause__
        return named

    def _with_keys(self, events: Sequence[Event]) -> list[Event]:
        """Return `events` with the keys of their records, where the store has keys."""
        keys = self._keys([event.position for event in events if event.key is None and event.position >= 0])
        return [replace(event, key=event.key or keys.get(event.position)) for event in events]

    def _keys(self, positions: Iterable[int]) -> dict[int, str]:
        """Return position in the store → key, of the records whose keys can be read. That takes a storage call."""
        asked = {position for position in positions if position >= 0}
        if not asked or "key" not in self.view.meta.fields:
            return {}
        store = whole(self.view)
        wanted = sorted(position for position in asked if position < len(store))
        try:
            records = store.get_many(wanted, ("key",))
        except StoredsError:  # names are for messages: what is wrong with the engine shows at the next read
            return {}
        found = zip(wanted, records, strict=True)
        return {position: str(record["key"]) for position, record in found if not isinstance(record, RecordError)}


def _bad(error: RecordError, context: SampleContext, outcome: str = "") -> Event:
    position = -1 if error.position is None else int(error.position)
    reason = error.reason or str(error)
    return Event(
        time.monotonic_ns(), context.epoch, context.index, position, error.kind, False, reason, outcome, error.key
    )


def _reason(error: Exception) -> str:
    """Return the text about a transform's exception; raises the exception where the sample is not at fault."""
    if isinstance(error, RecordError):
        return str(error)
    if isinstance(error, (StoredsError, MemoryError, torch.OutOfMemoryError)):
        raise error
    return f"{type(error).__name__}: {error}"


def _other_indices(context: SampleContext, allowed: Array | None, count: int) -> list[int]:
    """Return the first indices, without the context's own, of an order keyed by (seed, epoch, index)."""
    keys = round_keys("replace", context.seed or 0, context.epoch, context.index)
    count = count if allowed is None else len(allowed)
    drawn = permute(np.arange(min(MOST_IN_A_ROW + 1, count), dtype=np.uint64), count, keys)
    if allowed is not None:
        drawn = allowed[drawn.astype(np.intp)]
    others: Iterable[int] = (int(index) for index in drawn if index != context.index)
    return list(itertools.islice(others, MOST_IN_A_ROW))
