"""The verdict on a picture: what examining it once found, as a store keeps it beside the picture."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Self

__all__ = ["UNCHECKED", "Verdict"]

UNCHECKED = ""
"""What stands for no verdict: nobody examined the picture."""

_WHOLE = ("intact", "trailing_data")
_AT_LEAST = ">="


@dataclass(frozen=True, slots=True)
class Verdict:
    """What examining one picture found.

    Parameters
    ----------
    kind : str
        ``intact``, ``trailing_data`` (a whole picture, then other bytes), or the kind of damage, see
        `storeds.jpeg.Finding`.
    recovered : float
        The share of the picture that is there and decodes, 0 to 1.
    exact : bool
        Whether `recovered` is that share; else it is a lower bound.
    reason : str
        One sentence about what is wrong and where; no part of what is stored or compared.
    """

    kind: str
    recovered: float = 1.0
    exact: bool = True
    reason: str = field(default="", compare=False)

    @property
    def is_whole(self) -> bool:
        """Whether the picture has no damage."""
        return self.kind in _WHOLE

    @property
    def share(self) -> str:
        """`recovered` for people: ``62 %`` or ``at least 40 %``."""
        # Rounded down, so that only a whole picture is 100 %.
        return f"{'' if self.exact else 'at least '}{math.floor(1000 * self.recovered) / 10:g} %"

    def to_text(self) -> str:
        """Return the verdict as a store keeps it: ``intact``, ``truncated_scan 0.62``, ``truncated_scan >=0.4``."""
        if self.recovered == 1.0 and self.exact:
            return self.kind
        return f"{self.kind} {'' if self.exact else _AT_LEAST}{self.recovered!r}"

    @classmethod
    def from_text(cls, text: str) -> Self | None:
        """Return the verdict that `to_text` wrote, None for an empty text; raises ValueError for another text."""
        if text == "intact":  # nearly always
            return cls("intact")
        if text == UNCHECKED:
            return None
        kind, _, share = text.partition(" ")
        try:
            recovered = float(share.removeprefix(_AT_LEAST)) if share else 1.0
        except ValueError:
            recovered = math.nan
        if not kind.isidentifier() or not 0.0 <= recovered <= 1.0:
            raise ValueError(f"{text!r} is no verdict on a picture")
        return cls(kind, recovered, not share.startswith(_AT_LEAST))
