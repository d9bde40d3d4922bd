"""What sources of videos have in common: classes, and which record is which frame of which video."""

from __future__ import annotations

import bisect
import itertools
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from storeds.errors import ConfigError
from storeds.ops.sources._labels import class_notes
from storeds.ops.sources._packed import Fingerprint, Texts
from storeds.ops.sources._paths import show
from storeds.ops.sources._walk import Walk
from storeds.ops.sources.base import Problem
from storeds.ops.sources.folders import _folders_in
from storeds.protocols import JSON, Field, Record

__all__ = ["Videos"]


class Videos:
    """Videos below a folder: the base of sources whose records are frames.

    Parameters
    ----------
    root : str
        The folder.
    label : bool or None
        Whether its folders are classes; None finds out.
    allow_empty : bool
        Whether a class may have no video.
    """

    fields: Mapping[str, Field]

    def __init__(self, root: str, *, label: bool | None, allow_empty: bool) -> None:
        self._root, self._allow_empty, self._has_labels = os.path.abspath(root), allow_empty, label
        self._keys, self._labels, self._ends = Texts(), array("q"), array("q")
        self._fingerprint = Fingerprint()
        self.problems: Sequence[Problem] = ()
        self.notes: Sequence[str] = ()
        self.attrs: Mapping[str, JSON] = {}

    def _classify(self, names: Sequence[str], walk: Walk, what: str) -> dict[str, int]:
        """Return the label of each class, if videos have labels; `names` are paths below the root."""
        inside = [name for name in names if "/" in name]
        if self._has_labels is None and inside and len(inside) < len(names):
            outside = next(name for name in names if "/" not in name)
            raise ConfigError(
                f"{show(self._root)} holds {what} beside its folders ({outside!r}) and in them ({inside[0]!r}); pass "
                "label=False (--no-label) to take all without labels"
            )
        if self._has_labels and len(inside) < len(names):
            outside = next(name for name in names if "/" not in name)
            raise ConfigError(f"label=True: {outside!r} lies in no folder that says its class")
        self._has_labels = bool(inside) if self._has_labels is None else self._has_labels
        if not self._has_labels:
            return {}
        classes = sorted(_folders_in(self._root, walk))
        held = {name.split("/", 1)[0] for name in inside} | {problem.name.split("/", 1)[0] for problem in walk.problems}
        empty = [name for name in classes if show(name) not in held]
        if empty and not self._allow_empty:
            raise ConfigError(
                f"{show(self._root)}: no {what} in {', '.join(map(show, empty[:8]))}; remove these folders, fill them, or "
                "pass allow_empty=True (--allow-empty)"
            )
        listed: list[JSON] = [show(name) for name in classes]
        self.attrs = {"classes": listed}
        return {name: label for label, name in enumerate(classes)}

    def _add(self, key: str, label: int, count: int, *numbers: int) -> None:
        self._keys.append(key)
        self._labels.append(label)
        self._ends.append(count + (self._ends[-1] if self._ends else 0))
        self._fingerprint.add(key, label, count, *numbers)

    def _finish(self, kind: str, more: Mapping[str, Field], walk: Walk) -> None:
        names: Any = self.attrs.get("classes", [])
        self.problems, self.notes = tuple(walk.problems), (*class_notes(names), *walk.hidden.notes())
        label = {"label": Field("int")} if self._has_labels else {}
        numbers = {"video": Field("int"), "frame": Field("int")}
        self.fields = {"image": Field("image"), **label, **numbers, "key": Field("str"), **more}
        self.fingerprint: JSON = self._fingerprint.finish(kind, len(self))
        del self._fingerprint  # it does not pickle

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def _place(self, index: int) -> tuple[int, int]:
        """Return the number of the video, and that of the frame in it."""
        index = range(len(self))[index]
        video = bisect.bisect_right(self._ends, index)
        return video, index - (self._ends[video - 1] if video else 0)

    def strata(self) -> Iterator[tuple[str, int]]:
        """Yield the key and the label of each item."""
        start = 0
        for video, end in enumerate(self._ends):
            yield from itertools.repeat((self._keys[video], self._labels[video]), end - start)
            start = end

    def name(self, index: int, /) -> str:
        # docstring inherited
        video, frame = self._place(index)
        return f"{self._keys[video]} frame {frame}"

    def _record(self, video: int, frame: int, image: bytes) -> Record:
        label = {"label": self._labels[video]} if self._has_labels else {}
        return {"image": image, **label, "video": video, "frame": frame, "key": self._keys[video]}
