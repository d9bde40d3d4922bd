"""Opens the files of a foreign HDF5 store and follows its links, itself, so that none leads where nobody looked.

libhdf5 would follow an external link, external storage or a virtual dataset into any file they name, relative to folders
that environment variables choose, and give zeros where a virtual dataset's source is missing.
"""

from __future__ import annotations

import itertools
import os
from typing import Any, Literal

import h5py
from pydantic import Field as Option
from pydantic import field_validator

from storeds._utils.paths import check_file
from storeds.backends.base import BackendOptions
from storeds.backends.hdf5.stamp import check_hdf5_file, not_opened
from storeds.errors import ConfigError, FormatError, StoredsError, UnavailableError, suggest
from storeds.protocols import JSON

__all__ = ["ForeignOptions", "Hdf5Files", "NoSuchNameError"]

_HOPS = 16
_SHOWN = 8
_LOCKING = {"auto": None, "true": True, "false": False}


class ForeignOptions(BackendOptions):
    """Options that every foreign HDF5 layout has.

    Attributes
    ----------
    locking : str
        As for native stores: ``auto``, ``true``, ``false`` or ``best-effort``.
    cache_bytes : int
        Chunk cache of each dataset, in bytes. A chunk that is larger is decompressed anew for every batch.
    group : str
        The group that holds the store; the root by default.
    allow_outside : bool
        Follow links, external storage and virtual datasets that leave the folder of the store.
    partial : bool
        Read what the layout takes, though that is less than half of the bytes.
    """

    locking: Literal["auto", "true", "false", "best-effort"] = "auto"
    cache_bytes: int = Option(default=8 << 20, ge=0)
    group: str = "/"
    allow_outside: bool = False
    partial: bool = False

    @field_validator("group")
    @classmethod
    def _normalised(cls, group: str) -> str:
        return "/" + group.strip("/")


class NoSuchNameError(FormatError):
    """A name leads to nothing in a file."""


class Hdf5Files:
    """The files that one store keeps its values in, open for reading.

    Parameters
    ----------
    path : str
        Of the file that the URL names; the others lie in its folder, or ``allow_outside`` is set.
    url : str
        What messages call the store.
    settings : ForeignOptions
    """

    def __init__(self, path: str, url: str, settings: ForeignOptions) -> None:
        self.path, self.url, self.settings = path, url, settings
        self._root = os.path.realpath(os.path.dirname(path))
        self._files: dict[str, h5py.File] = {}
        self._descriptors: dict[str, int] = {}
        self._sources: dict[str, list[int]] = {}

    def __enter__(self) -> Hdf5Files:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close everything."""
        while self._files:
            self._files.popitem()[1].close()
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def identity(self) -> list[JSON]:
        """Return device, inode, size and time of change of every file opened or checked so far."""
        paths = {self.path: None, **dict.fromkeys(self._descriptors), **dict.fromkeys(self._sources)}
        return [list(_identity(path)) for path in paths]

    def check_sources(self) -> None:
        """Raise UnavailableError if a source of a virtual dataset was changed or removed: HDF5 would give zeros."""
        for path, identity in self._sources.items():
            try:
                same = _identity(path) == identity
            except OSError:
                same = False
            if not same:
                raise UnavailableError(
                    f"{self.url}: {path}, a source of a virtual dataset, was changed or removed; open it again"
                )

    def descriptor(self, path: str) -> int:
        """Return an open descriptor of the file at `path`."""
        if path not in self._descriptors:
            try:
                self._descriptors[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise FormatError(f"{self.url}: {path} cannot be read: {error.strerror}") from None
        return self._descriptors[path]

    def file(self, path: str) -> h5py.File:
        """Return the open HDF5 file at `path`."""
        if path not in self._files:
            url = self.url if path == self.path else path
            check_file(path, "hdf5", url)
            check_hdf5_file(self.descriptor(path), url)
            locking = _LOCKING.get(self.settings.locking, self.settings.locking)
            try:
                file = h5py.File(path, "r", locking=locking, rdcc_nbytes=self.settings.cache_bytes)
            except Exception as error:  # a damaged header makes libhdf5 raise almost anything
                raise not_opened(url, error) from error
            self._files[path] = file
        return self._files[path]

    def inside(self, name: str, folder: str, asker: str, error: type[StoredsError] = FormatError) -> str:
        """Return the absolute path of file `name` as seen from `folder`; raises unless it may be read and is there."""
        path = os.path.realpath(os.path.join(folder, name))
        if not self.settings.allow_outside and os.path.commonpath([self._root, path]) != self._root:
            raise error(
                f"{self.url}: {asker} leads to {path}, outside of the store's folder; allow_outside=True follows it, if "
                "whoever wrote the file may choose what this process reads"
            )
        if not os.path.isfile(path):
            raise error(f"{self.url}: {asker} leads to {path}, which is missing; copy it there, or correct the name")
        return path

    def find(self, name: str, path: str | None = None, hops: int = 0) -> tuple[h5py.Group | h5py.Dataset, str]:
        """Return the object called `name`, and what of the name lies in a dataset: a column of its table."""
        path = path or self.path
        at: h5py.Group | h5py.Dataset = self.file(path)
        parts = [part for part in name.split("/") if part not in ("", ".")]
        for number, part in enumerate(parts):
            rest = "/".join(parts[number + 1 :])
            if isinstance(at, h5py.Dataset):
                return self._checked(at, hops), "/".join(parts[number:])
            sort = _link_sort(at, part)
            if sort is None:
                raise NoSuchNameError(
                    f"{self.url}: {at.name} has no {part!r}; {suggest(part, at.keys(), 'names there')}"
                )
            if sort != h5py.h5l.TYPE_HARD:
                return self._follow(at.get(part, getlink=True), at, f"{at.name.rstrip('/')}/{part}", rest, hops)
            at = at[part]
        return self._checked(at, hops), ""

    def _follow(
        self, link: Any, parent: h5py.Group, name: str, rest: str, hops: int
    ) -> tuple[h5py.Group | h5py.Dataset, str]:
        if hops >= _HOPS:
            raise FormatError(f"{self.url}: {name} is a link that leads through more than {_HOPS} others")
        path = parent.file.filename
        if isinstance(link, h5py.ExternalLink):
            other = self.inside(link.filename, os.path.dirname(path), f"the external link {name}")
            return self.find(f"{link.path}/{rest}", other, hops + 1)
        target = link.path if link.path.startswith("/") else f"{parent.name}/{link.path}"
        return self.find(f"{target}/{rest}", path, hops + 1)

    def dataset(self, name: str, path: str | None = None) -> h5py.Dataset:
        """Return the dataset called `name`."""
        found, rest = self.find(name, path)
        if rest or not isinstance(found, h5py.Dataset):
            raise FormatError(f"{self.url}: {name} is no dataset")
        return found

    def group(self, name: str) -> h5py.Group:
        """Return the group called `name`; it may hold links to elsewhere."""
        found, rest = self.find(name)
        if rest or not isinstance(found, h5py.Group):
            raise FormatError(f"{self.url}: {name} is no group")
        return found

    def told(self, name: str) -> str:
        """Return what lies in the group called `name`, in half a sentence."""
        group = self.group(name)
        names = list(itertools.islice(group, _SHOWN + 1))
        where = "it" if group.name == "/" else f"its group {group.name}"
        if not names:
            return f"{where} is empty"
        shown = ", ".join(_told(group, each) for each in names[:_SHOWN])
        return f"{where} holds {shown}{' …' if len(names) > _SHOWN else ''}"

    def _checked(self, found: h5py.Group | h5py.Dataset, hops: int) -> h5py.Group | h5py.Dataset:
        if isinstance(found, h5py.Dataset):
            missing = [name for code, name in _filters(found) if not h5py.h5z.filter_avail(code)]
            if missing:
                raise FormatError(
                    f"{self.url}: dataset {found.name} is compressed with {missing[0]}, which this HDF5 lacks; "
                    "`pip install hdf5plugin` and `import hdf5plugin` first, or convert it with h5repack"
                )
            self._check_type(found)
            for name, _, _ in found.external or ():
                self.inside(name, os.path.dirname(found.file.filename), f"the external storage of dataset {found.name}")
            if found.is_virtual:
                self._check_virtual(found, hops)
        return found

    def _check_type(self, dataset: h5py.Dataset) -> None:
        try:
            dataset.dtype  # noqa: B018  # asking for it is what raises
        except TypeError as error:
            raise FormatError(
                f"{self.url}: dataset {dataset.name} is of a type that NumPy lacks: {error}; columns= names the datasets to read"
            ) from None

    def _check_virtual(self, dataset: h5py.Dataset, hops: int) -> None:
        name, path = dataset.name, dataset.file.filename
        if os.environ.get("HDF5_VDS_PREFIX"):
            raise ConfigError(f"{self.url}: unset HDF5_VDS_PREFIX, which leads virtual datasets like {name} elsewhere")
        if hops >= _HOPS:
            raise FormatError(f"{self.url}: {name} is a virtual dataset of more than {_HOPS} others in a row")
        mapped = 0
        for source in dataset.virtual_sources():
            asker = f"a source of the virtual dataset {name} (HDF5 gives zeros where one is missing)"
            other = path
            if source.file_name != ".":
                if "%" in source.file_name:
                    raise FormatError(f"{self.url}: {name} names its sources by the pattern {source.file_name!r}")
                other = self.inside(source.file_name, os.path.dirname(path), asker)
            found, rest = self.find(source.dset_name, other, hops + 1)
            if rest or not isinstance(found, h5py.Dataset):
                raise FormatError(f"{self.url}: {asker} is {source.dset_name} of {other}, which is no dataset")
            if _lacks(found, source):
                raise FormatError(
                    f"{self.url}: {asker}, {source.dset_name} of {other}, has only the shape {found.shape}"
                )
            mapped += source.vspace.get_select_npoints()
            self._sources[other] = _identity(other)
        if mapped < dataset.size:
            raise FormatError(
                f"{self.url}: the virtual dataset {name} has sources for only {mapped} of its {dataset.size} values"
            )


def _link_sort(group: h5py.Group, name: str) -> int | None:
    """Return the sort of a link, or None if there is none; several times as fast as h5py's ``get(getlink=True)``."""
    try:
        return int(group.id.links.get_info(name.encode("utf-8", "surrogateescape")).type)
    except (KeyError, RuntimeError):
        return None


def _told(group: h5py.Group, name: str | bytes) -> str:
    """Return one member's name and what it is; links are not followed."""
    if isinstance(name, bytes):  # no UTF-8
        return repr(name)
    if _link_sort(group, name) != h5py.h5l.TYPE_HARD:
        return f"{name!r} (a link)"
    member = group[name]
    if isinstance(member, h5py.Dataset):
        return f"{name!r} (a dataset of shape {member.shape})"
    return f"{name!r} (a group of {len(member)})" if isinstance(member, h5py.Group) else f"{name!r} (a named type)"


def _lacks(found: h5py.Dataset, source: Any) -> bool:
    """Whether a source of a virtual dataset is smaller than what is taken from it."""
    if source.src_space.get_select_type() == h5py.h5s.SEL_ALL:
        return bool(found.size < source.vspace.get_select_npoints())
    _, high = source.src_space.get_select_bounds()
    return any(last >= size for last, size in zip(high, found.shape, strict=True))


def _identity(path: str) -> list[int]:
    status = os.stat(path)
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns]


def _filters(dataset: h5py.Dataset) -> list[tuple[int, str]]:
    plan = dataset.id.get_create_plist()
    filters = [plan.get_filter(number) for number in range(plan.get_nfilters())]
    return [(code, f"filter {code} ({name.decode(errors='replace') or 'nameless'})") for code, _, _, name in filters]
