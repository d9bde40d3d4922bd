"""What `StoreDataset.report` tells: how many samples were asked for, mended and bad, and which."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from storeds._tally import FAULTS, Event, Tally
from storeds._text import counted

__all__ = ["Event", "SampleReport"]


@dataclass(frozen=True)
class SampleReport:
    """Counts over all epochs so far, of this process and the workers that it started.

    Attributes
    ----------
    url : str
    on_error : str
        The policy.
    seen : int
        Samples asked for.
    bad, mended : dict
        Fault → how many samples were bad by it, or were given out although a part of them is missing.
    skipped, replaced : int
        What became of the bad ones; with ``raise``, neither.
    first, last : list of Event
        The first ten bad samples, and the last ten that were bad or mended, oldest first.
    """

    url: str
    on_error: str
    seen: int
    bad: dict[str, int]
    mended: dict[str, int]
    skipped: int
    replaced: int
    first: list[Event]
    last: list[Event]

    @classmethod
    def of(cls, url: str, on_error: str, tally: Tally) -> SampleReport:
        """Return what `tally` holds now."""
        counters = {name: tally.total(name) for name in ("seen", "bad", "mended", "skipped", "replaced")}
        return cls(url, on_error, **counters, first=tally.events("first"), last=tally.events("last"))

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return asdict(self)

    def __str__(self) -> str:
        total = f"{sum(self.bad.values()):,} bad ({self.skipped:,} skipped, {self.replaced:,} replaced)"
        lines = [f"{self.url}: {counted(self.seen, 'sample')}, {sum(self.mended.values()):,} mended, {total}"]
        faults = [fault for fault in FAULTS if fault in self.bad or fault in self.mended]
        if faults:
            lines.append(f"  {'fault':<18}{'mended':>10}{'bad':>10}")
            lines += [f"  {fault:<18}{self.mended.get(fault, 0):>10,}{self.bad.get(fault, 0):>10,}" for fault in faults]
        lines += [f"  {event.text}" for event in self.last]
        return "\n".join(lines)
