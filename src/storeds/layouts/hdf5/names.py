"""Names in foreign files: made into field names, put in order, and kept packed for all processes of a machine."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import h5py
import numpy as np

from storeds.protocols import JSON, Array
from storeds.records.index_cache import index_path, load_index, save_index

__all__ = ["PackedIndex", "are_splits", "field_names", "natural_order", "split", "stem"]

_SPLITS = {"train", "training", "val", "valid", "validation", "dev", "test", "testing"}
_LOOKED_AT = 10_000
_DIGITS = re.compile(r"(\d+)")


def natural_order(names: Iterable[str]) -> list[str]:
    """Return names in the order in which people count: ``img_2`` before ``img_10``."""

    def key(name: str) -> tuple[tuple[int | str, ...], str]:
        parts = _DIGITS.split(name)
        return tuple(int(part) if at % 2 else part for at, part in enumerate(parts)), name

    return sorted(names, key=key)


def stem(name: str) -> str | None:
    """Return `name` with ``#`` for each number in it, or None if it has none: names of one series have equal stems."""
    found, count = _DIGITS.subn("#", name)
    return found if count else None


def field_names(names: Sequence[str], taken: Iterable[str] = ()) -> dict[str, str]:
    """Return name → field name: lower case, ``_`` for what a field's name cannot hold, ``_2`` for a second equal one."""
    used, out = set(taken), {}
    for name in names:
        plain = re.sub(r"[^a-z0-9_]+", "_", name.lower()).strip("_")[:90] or "field"
        plain = plain if plain[0].isalpha() else f"f{plain}"
        fresh, number = plain, 2
        while fresh in used:
            fresh, number = f"{plain}_{number}", number + 1
        used.add(fresh)
        out[name] = fresh
    return out


def are_splits(groups: Sequence[str]) -> bool:
    """Whether groups are parts of a data set, each a store of its own, rather than videos or classes."""
    return all(name.lower() in _SPLITS for name in groups)


class PackedIndex:
    """A list of names, a list of numbers and a few facts, in one memory-mapped file of the user's cache folder.

    Parameters
    ----------
    packed : array of int64
        Lengths of the three parts; where each name ends; the numbers; the names' bytes and the facts' JSON.
    """

    def __init__(self, packed: Array) -> None:
        self.count, numbers, names, facts = packed[:4].tolist()
        ends_at = 4 + self.count
        self._ends = packed[4:ends_at]
        self.numbers = packed[ends_at : ends_at + numbers]
        text = packed[ends_at + numbers :].view(np.uint8)
        if len(text) < names + facts:
            raise ValueError("the index is cut short")
        self._text = text[:names]
        self.facts: dict[str, Any] = json.loads(text[names : names + facts].tobytes())

    @classmethod
    def make(cls, names: Sequence[str], numbers: Array, facts: Mapping[str, JSON]) -> Array:
        """Return the array of an index."""
        encoded = [name.encode("utf-8", "surrogateescape") for name in names]
        ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
        text, told = b"".join(encoded), json.dumps(facts).encode()
        body = np.frombuffer((text + told).ljust(-(-(len(text) + len(told)) // 8) * 8, b"\0"), np.int64)
        return np.concatenate([[len(names), len(numbers), len(text), len(told)], ends, numbers, body]).astype(np.int64)

    @classmethod
    def load(cls, key: JSON, build: Callable[[], Array]) -> Self:
        """Return the index kept under `key`, or build and keep it."""
        path = index_path("hdf5", key)
        found = load_index(path)
        if found is not None:
            try:
                return cls(found)
            except ValueError:
                pass
        return cls(save_index(path, build()))

    def name(self, number: int) -> str:
        """Return a name by its number."""
        start = int(self._ends[number - 1]) if number else 0
        return self._text[start : int(self._ends[number])].tobytes().decode("utf-8", "surrogateescape")


def split(group: h5py.Group) -> tuple[list[str], list[str]]:
    """Return the names of datasets and of groups in a group; links count as datasets until they are followed.

    Of very many members only some are looked at: where those are all of one sort, so are the others taken to be.
    """
    hard: list[bytes] = []
    links: list[bytes] = []

    def note(name: bytes, info: Any) -> None:
        if not name.startswith((b"_i_", b"#")):  # PyTables' index of a table, and what MATLAB's cells refer to
            (hard if info.type == h5py.h5l.TYPE_HARD else links).append(name)

    group.id.links.iterate(note, info=True)
    step = max(1, len(hard) // _LOOKED_AT)
    found = {_is_group(group, name) for name in hard[::step]}
    if step > 1 and len(found) == 1:
        groups = hard if True in found else []
    else:
        groups = [name for name in hard if _is_group(group, name)]
    chosen = set(groups)
    return _texts(name for name in (*hard, *links) if name not in chosen), _texts(groups)


def _is_group(group: h5py.Group, name: bytes) -> bool:
    return bool(h5py.h5g.get_objinfo(group.id, name).type == h5py.h5g.GROUP)


def _texts(names: Iterable[bytes]) -> list[str]:
    return [name.decode("utf-8", "surrogateescape") for name in names]
