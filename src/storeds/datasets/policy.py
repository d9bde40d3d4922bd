"""What happens to a bad sample: raised, skipped, or replaced by another; counted and told in any case."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from storeds._utils.permutation import permute, round_keys
from storeds._utils.validation import check_share
from storeds.batching.skipped import Skipped
from storeds.datasets.pipeline import SamplePipeline
from storeds.datasets.report import Event, Tally, now
from storeds.errors import BadSamplesError, ConfigError, RecordError, suggest
from storeds.protocols import SampleContext

__all__ = ["POLICIES", "Policy"]

_LOG = logging.getLogger("storeds")

POLICIES = ("raise", "skip", "replace")

# A store of which so many in a row are bad is not one to train on.
_ATTEMPTS = 100
# A fraction of fewer samples than this says little; a store that is bad altogether is stopped early enough.
_ENOUGH = 10_000


@dataclass(frozen=True)
class Policy:
    """One dataset's policy for bad samples.

    Parameters
    ----------
    on_error : str
        ``raise``, ``skip`` or ``replace``.
    max_bad : int, optional
        As many bad samples are borne until the next ``set_epoch``, over all workers of this process.
    max_bad_fraction : float, optional
        The same, as a share of the samples seen in the epoch, counted as 10,000 (or the length of the dataset) while they
        are fewer.
    of : int, optional
        How many samples those who share the counters have, where that is not the length of the dataset.
    """

    on_error: str = "raise"
    max_bad: int | None = None
    max_bad_fraction: float | None = None
    of: int | None = None

    def __post_init__(self) -> None:
        if self.on_error not in POLICIES:
            raise ConfigError(f"unknown on_error {self.on_error!r}; {suggest(self.on_error, POLICIES, 'policies')}")
        if self.max_bad is not None and (not isinstance(self.max_bad, int) or self.max_bad is True or self.max_bad < 0):
            raise ConfigError(f"max_bad is a number of samples, 0 or more, got {self.max_bad!r}")
        if self.max_bad_fraction is not None:
            check_share("max_bad_fraction", self.max_bad_fraction)

    def samples(
        self, maker: SamplePipeline, contexts: Sequence[SampleContext], tally: Tally, *, fill: bool
    ) -> list[Any]:
        """Return the samples of `contexts`, with what the policy puts in the place of bad ones.

        Parameters
        ----------
        fill : bool
            Whether a batch of which every sample would be skipped is made of replacements.

        Raises
        ------
        RecordError
            With ``raise``, the first bad one.
        BadSamplesError
            There are too many, or no good one was found to replace one.
        """
        made, error = self.fetch_until_error(maker, contexts, tally, fill=fill)
        if error is not None:
            raise error from error.__cause__
        return made

    def fetch_until_error(
        self, maker: SamplePipeline, contexts: Sequence[SampleContext], tally: Tally, *, fill: bool
    ) -> tuple[list[Any], RecordError | None]:
        """Return what `samples` does; or with ``raise``, the samples before the first bad one, and its error."""
        if not contexts:
            return [], None
        tally.saw(len(contexts), contexts[0].epoch)
        made: list[Any] = []
        for context, (sample, positions) in zip(contexts, maker.make(contexts), strict=True):
            if isinstance(sample, RecordError) and self.on_error == "raise":
                self._count(sample, context, tally)
                return made, maker.with_key(sample, positions)
            made.append(sample)
            if not isinstance(sample, RecordError):
                self._count_mended(context, positions, tally, maker)
        bad = [at for at, sample in enumerate(made) if isinstance(sample, RecordError)]
        if bad:
            self._apply_policy(made, bad, contexts, tally, maker, fill)
        return made, None

    def _apply_policy(
        self,
        made: list[Any],
        bad: list[int],
        contexts: Sequence[SampleContext],
        tally: Tally,
        maker: SamplePipeline,
        fill: bool,
    ) -> None:
        """Put into the places `bad` of `made` what the policy says, and count it."""
        replacing = self.on_error == "replace" or (fill and len(bad) == len(made))
        for at in bad:
            self._count(made[at], contexts[at], tally, "replaced" if replacing else "skipped")
        self._check(tally, contexts[0].epoch, maker)
        if replacing:
            found = self._replacements([contexts[at] for at in bad], tally, maker)
            for at, sample in zip(bad, found, strict=True):
                made[at] = sample
        else:
            for at in bad:
                error = made[at]
                made[at] = Skipped(contexts[at].index, error.url, error.position, error.kind, error.reason)

    def _replacements(self, contexts: Sequence[SampleContext], tally: Tally, maker: SamplePipeline) -> list[Any]:
        """Return a good sample for each context: the first that is, in an order keyed with (seed, epoch, index)."""
        count = len(maker.reader)
        orders = [_others(context, count) for context in contexts]
        found: list[Any] = [None] * len(contexts)
        pending = list(range(len(contexts)))
        for attempt in range(min(_ATTEMPTS, count - 1)):
            tried = [replace(contexts[at], index=orders[at][attempt], notes=[]) for at in pending]
            for at, context, (sample, positions) in zip(pending, tried, maker.make(tried), strict=True):
                found[at] = sample
                if not isinstance(sample, RecordError):
                    self._count_mended(context, positions, tally, maker)
            pending = [at for at in pending if isinstance(found[at], RecordError)]
            if not pending:
                return found
        index, tries = contexts[pending[0]].index, min(_ATTEMPTS, count - 1)
        why = (
            f"all of {tries} others tried are bad too, the last by: {found[pending[0]]}"
            if tries
            else "it is the only one"
        )
        raise BadSamplesError(f"no good sample was found to stand in for sample {index} of {maker.view.url}: {why}")

    def _check(self, tally: Tally, epoch: int, maker: SamplePipeline) -> None:
        """Raise BadSamplesError, which lists the first ones, if there are too many."""
        if self.max_bad is None and self.max_bad_fraction is None:
            return
        seen, bad = tally.limits(epoch)
        limits: list[tuple[float, str]] = []
        if self.max_bad is not None:
            limits.append((self.max_bad, f"max_bad={self.max_bad}"))
        if self.max_bad_fraction is not None:
            of = max(seen, min(_ENOUGH, len(maker.reader) if self.of is None else self.of))
            limits.append((self.max_bad_fraction * of, f"max_bad_fraction={self.max_bad_fraction} of {of:,}"))
        for limit, name in limits:
            if bad > limit:
                listed = "\n  ".join(event.text for event in tally.events("first"))
                raise BadSamplesError(f"{bad} samples were bad, more than {name}; the first are:\n  {listed}")

    def _count(self, error: RecordError, context: SampleContext, tally: Tally, outcome: str = "") -> None:
        position = -1 if error.position is None else error.position
        event = Event(now(), context.epoch, context.index, position, error.kind, False, str(error))
        tally.add(event, outcome)
        if outcome and tally.tell(event.fault):
            _LOG.warning("%s: %s (further ones of kind %s are only counted)", outcome, error, event.fault)

    def _count_mended(
        self, context: SampleContext, positions: Sequence[int], tally: Tally, maker: SamplePipeline
    ) -> None:
        for note in context.notes:
            error = maker.placed(RecordError, positions, note.message, note.kind)
            position = -1 if error.position is None else error.position
            tally.add(Event(now(), context.epoch, context.index, position, note.kind, True, str(error)))
            if tally.tell(note.kind):
                _LOG.warning("%s (further ones of kind %s are only counted)", error, note.kind)


def _others(context: SampleContext, count: int) -> list[int]:
    """Return the first indices, other than its own, of an order keyed with (seed, epoch, index)."""
    keys = round_keys("replace", context.seed or 0, context.epoch, context.index)
    drawn = permute(np.arange(min(_ATTEMPTS + 1, count), dtype=np.uint64), count, keys)
    others: Iterable[int] = (int(index) for index in drawn if index != context.index)
    return list(itertools.islice(others, _ATTEMPTS))
