"""Walks the groups of a foreign HDF5 file, and tells what of it no field holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import h5py

from storeds.errors import FormatError
from storeds.layouts.hdf5.files import Hdf5Files
from storeds.layouts.hdf5.names import natural_order, split

__all__ = ["Left", "Member", "describe", "left_of", "members"]

_MOST = 4096  # datasets; a file with more is not walked to its end
_DEPTH = 16


@dataclass(frozen=True)
class Member:
    """A dataset below a group, and its path as seen from there: ``observations/qpos``."""

    path: str
    dataset: h5py.Dataset

    @property
    def nbytes(self) -> int:
        """Its size in memory; of values of variable length, only what refers to them."""
        return int(self.dataset.size or 0) * int(self.dataset.dtype.itemsize)


@dataclass
class Left:
    """What of a store no field holds.

    Attributes
    ----------
    entries : list of str
        Each path with a reason.
    size, total : int
        Bytes that are left, and of everything.
    largest : Member or None
        What is left that has most bytes.
    """

    entries: list[str] = field(default_factory=list)
    size: int = 0
    total: int = 0
    largest: Member | None = None

    def add(self, member: Member, reason: str | None) -> None:
        """Count a dataset; one with a reason is left unread."""
        nbytes = member.nbytes
        self.total += nbytes
        if reason is not None:
            self.size += nbytes
            if self.largest is None or nbytes > self.largest.nbytes:
                self.largest = member
            self.entries.append(f"{member.path} ({describe(member.dataset)}: {reason})")


def members(files: Hdf5Files, group: str, *, most: int = _MOST, unfit: list[str] | None = None) -> Iterator[Member]:
    """Yield the datasets below a group, those of the group itself first; links are followed, but in no circle.

    What nested groups hold that cannot be followed or read is passed over, and noted in `unfit`. In the group itself, it
    raises FormatError.
    """
    yield from _members(files, group, "", [most], frozenset(), [] if unfit is None else unfit)


def _members(
    files: Hdf5Files,
    group: str,
    prefix: str,
    budget: list[int],
    above: frozenset[tuple[int, int]],
    unfit: list[str],
) -> Iterator[Member]:
    here = files.group(group)
    info = h5py.h5o.get_info(here.id)
    place = (info.fileno, info.addr)
    if place in above or len(above) > _DEPTH:
        return
    names, groups = split(here)
    inner = list(groups)
    for name in names:
        if budget[0] <= 0:
            return
        try:
            found, _ = files.find(f"{group}/{name}")
        except FormatError as error:
            if not prefix:
                raise
            unfit.append(f"{prefix}{name} ({str(error).removeprefix(f'{files.url}: ')})")
            continue
        if isinstance(found, h5py.Dataset):
            budget[0] -= 1
            yield Member(f"{prefix}{name}", found)
        elif isinstance(found, h5py.Group):
            inner.append(name)  # through a link
    for name in natural_order(inner):
        yield from _members(files, f"{group}/{name}", f"{prefix}{name}/", budget, above | {place}, unfit)


def left_of(files: Hdf5Files, group: str, why: Callable[[Member], str | None]) -> Left:
    """Return what of the datasets below a group is left unread: `why` gives the reason, or None for one that is read."""
    left = Left()
    for member in members(files, group, unfit=left.entries):
        left.add(member, why(member))
    return left


def describe(dataset: h5py.Dataset) -> str:
    """Return dtype and shape of a dataset."""
    dtype = dataset.dtype
    if h5py.check_string_dtype(dtype) is not None:
        name = "text"
    elif h5py.check_vlen_dtype(dtype) is not None:
        name = f"{h5py.check_vlen_dtype(dtype)} of variable length"
    else:
        name = "a table" if dtype.names else "opaque" if dtype.kind == "V" else str(dtype)
    return f"{name} {_shape(dataset.shape)}"


def _shape(shape: Sequence[int] | None) -> str:
    return "nothing" if shape is None else f"[{', '.join(map(str, shape))}]"
