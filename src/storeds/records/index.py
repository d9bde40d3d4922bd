"""`Index`: positions that a function finds, kept in a file that all processes map."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from storeds.protocols import JSON, Array
from storeds.records.cache import index_path, load_index, save_index

__all__ = ["Index"]


class Index:
    """Positions of records, found once. A pickle carries the path of their file, and not the positions.

    Parameters
    ----------
    find : callable
        Returns the positions, int64. Picklable. It is called if the file is missing, or damaged, and in each process if no
        file can be written.
    *key : JSON
        What the positions depend on: the URL and build of the store, and the query.
    """

    def __init__(self, find: Callable[[], Array], *key: JSON) -> None:
        self._find, self._path = find, index_path(*key)
        self._positions: Array | None = None

    @property
    def name(self) -> str:
        """A text that is equal for equal keys."""
        return self._path.stem.removeprefix("storeds-")

    @property
    def positions(self) -> Array:
        """The positions, read-only."""
        if self._positions is None:
            found = load_index(self._path)
            if found is None:
                found = save_index(self._path, self._find())
            self._positions = np.asarray(found)  # the same memory, but faster access to items than memmap
        return self._positions

    def __len__(self) -> int:
        return len(self.positions)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_positions": None}
