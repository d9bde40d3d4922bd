"""Opens the files of a foreign HDF5 store, follows links itself, and walks groups.

libhdf5 alone would follow an external link, external storage or a virtual dataset into any file that it names, relative to
folders that environment variables choose. Here, only links are followed.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import h5py
import msgspec
import numpy as np

from storeds._utils.files import check_status
from storeds._utils.globs import glob_escaped, matches
from storeds._utils.urls import StoreURL
from storeds.backends.file_stores import engine_at
from storeds.backends.hdf5.headers import check_attribute
from storeds.backends.hdf5.stamp import check_hdf5_file, open_hdf5_file
from storeds.backends.raw import BackendOptions
from storeds.errors import ConfigError, FormatError, StoredsError, UnavailableError, suggest
from storeds.layouts.pattern import Pattern, Template, natural_order, parse_pattern
from storeds.protocols import JSON, Field, Kind

__all__ = [
    "MOST_OPEN",
    "MOST_WALKED",
    "Address",
    "ForeignOptions",
    "Hdf5Files",
    "Member",
    "NoSuchNameError",
    "Unreadable",
    "attribute_fields",
    "attributes",
    "describe",
    "file_of",
    "members",
    "names_in",
]

_MOST_LINKS = 16  # links in a row
_LISTED = 8  # names in a message
MOST_OPEN = 64
"""Files of a folder that stay open, and open datasets of each field of them."""
_CACHE = 1 << 18  # bytes that libhdf5 caches; it reads an unfiltered chunk that fits in whole, even for a single row


def _parsed(columns: Any) -> Pattern | None:
    return None if columns is None else parse_pattern(columns)


def _normalised(group: Any) -> Any:
    return "/" + group.strip("/") if isinstance(group, str) else group


class ForeignOptions(BackendOptions, frozen=True):
    """Options of every foreign HDF5 layout.

    Attributes
    ----------
    locking : str
        As for native stores: ``auto``, ``true``, ``false`` or ``best-effort``.
    cache_bytes : int
        Chunk cache of each dataset, in bytes. A larger chunk is decompressed again for every batch.
    group : str
        The group that holds the store; the root by default.
    columns : mapping or str, optional
        The pattern, as `storeds.layouts.pattern.parse_pattern` takes it. Its paths begin at `group`.
    allow_outside : bool
        Follow links that leave the folder of the store.
    """

    parsers: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"columns": _parsed, "group": _normalised}

    locking: Literal["auto", "true", "false", "best-effort"] = "auto"
    cache_bytes: Annotated[int, msgspec.Meta(ge=0)] = 8 << 20
    group: str = "/"
    columns: Pattern | None = None
    allow_outside: bool = False


class Address(NamedTuple):
    """The name of an object, and the file that holds it, from the folder of the store; ``""`` for the store itself."""

    name: str
    file: str = ""

    def below(self, path: str) -> Address:
        """Return the address of the object at a path from here."""
        return Address(f"{self.name}/{path}", self.file)

    def __str__(self) -> str:
        return f"{self.file}::{self.name}" if self.file else self.name


class NoSuchNameError(FormatError):
    """A file has no object of this name."""


class _Descriptor(int):
    """The descriptor of an open file, which closes when nobody uses it any more."""

    def __del__(self) -> None:
        os.close(self)


class Hdf5Files:
    """The open files of one store: the one that the URL names, and those that its links lead to; or the files of a folder.

    Parameters
    ----------
    path : str
        Of the file or folder that the URL names. Other files must lie in the folder, unless ``allow_outside`` is set.
    url : str
        Names the store in messages.
    settings : ForeignOptions
    glob : str
        Which files of the folder belong to the store; ``""`` for all that a pattern names.

    Notes
    -----
    Of a folder, the files that were used last stay open. One that is in use stays open until it is not.

    Attributes
    ----------
    listed, walked : dict
        What `names_in` and `members` found, while the store is being opened.
    unpickled : dict
        What `storeds.layouts.hdf5.frames` unpickled, while the store is being opened.
    remembers : bool
        Whether it is, and few files are open.
    """

    def __init__(self, path: str, url: str, settings: ForeignOptions, glob: str = "") -> None:
        self.path, self.url, self.settings, self.glob = path, url, settings, glob
        self.is_folder = os.path.isdir(path)
        self._most_open = MOST_OPEN if self.is_folder else math.inf
        self._descriptors: OrderedDict[str, _Descriptor] = OrderedDict()
        self._open: OrderedDict[str, h5py.File] = OrderedDict()
        self._in_use: weakref.WeakValueDictionary[int, h5py.File] = weakref.WeakValueDictionary()
        self._folders = (path, os.path.realpath(path)) if self.is_folder else _folders(path)
        self._roots = {*map(os.path.realpath, self._folders)}
        self._seen: dict[str, list[int]] = {}
        self.listed: dict[tuple[Address, int | None], tuple[list[str], list[str]]] = {}
        self.walked: dict[Address, tuple[list[Member], list[Unreadable]]] = {}
        self.unpickled: dict[tuple[str, str], dict[str, list[Any]]] = {}  # file and dataset → its columns
        self.remembers = not self.is_folder
        self._located: dict[Address, tuple[h5py.Group | h5py.Dataset, str]] = {}
        self._checked: dict[Address, tuple[h5py.Group | h5py.Dataset, str]] = {}
        self._paths = {} if self.is_folder else {"": path}
        self._matching: dict[Template, list[tuple[tuple[str, ...], str]]] = {}

    def forget(self) -> None:
        """Forget what was found while the store was opened."""
        self.remembers = False
        self.listed.clear()
        self.walked.clear()
        self.unpickled.clear()
        self._located.clear()
        self._checked.clear()

    def close(self) -> None:
        """Close all files."""
        self._open.clear()
        for file in list(self._in_use.values()):
            file.close()
        self._descriptors.clear()

    def again(self) -> Hdf5Files:
        """Return the same files, none of which is open."""
        return Hdf5Files(self.path, self.url, self.settings, self.glob)

    def own(self) -> list[Any]:
        """Return what `seen` returns for the file that the URL names; nothing for a folder."""
        return [] if self.is_folder else [[self.path, *(self._seen.get(self.path) or _identity(os.stat(self.path)))]]

    def seen(self) -> list[Any]:
        """Return path, device, inode, size and modification time of every file found or opened so far, its own first."""
        found = {path: identity for path, *identity in self.own()} | self._seen
        return [[path, *identity] for path, identity in found.items()]

    def matching(self, template: Template) -> list[tuple[tuple[str, ...], str]]:
        """Return the files of the folder whose names match a template: the texts of its names, and the name; in natural order.

        Raises
        ------
        StoreNotFoundError, ConfigError
            There are none; the store is a file.
        """
        if not self.is_folder:
            raise ConfigError(
                f"{self.url} is a file, and columns= names files by {str(template)!r}; name the folder that holds them"
            )
        if template not in self._matching:
            names = [
                os.path.relpath(path, self.path)
                for path in matches(StoreURL.parse(self.url), self.glob or self._glob_of(template))
            ]
            found = {name: match for name in names if (match := template.regex().fullmatch(name))}
            if not found:
                raise ConfigError(
                    f"{self.url}: no file matches {str(template)!r}; there are {', '.join(names[:_LISTED])}"
                )
            self._matching[template] = [(found[name].groups(), name) for name in natural_order(found)]
        return self._matching[template]

    def note(self, templates: Collection[Template], leading: Template) -> None:
        """Make the files that match `leading`, and those that `templates` name beside each of them, a part of what `seen` returns."""
        for texts, _ in self.matching(leading):
            named = dict(zip(leading.names, texts, strict=True))
            for template in templates:
                # A name may be one in a path; and a missing file is a bad record.
                with contextlib.suppress(KeyError, NoSuchNameError):
                    path = self.path_of(template.fill(named))
                    self._seen.setdefault(path, _identity(os.stat(path)))

    def _glob_of(self, template: Template) -> str:
        return os.path.normpath(os.path.join(glob_escaped(self.path), "*".join(map(glob_escaped, template.texts))))

    def changed(self, seen: Sequence[Any]) -> bool:
        """Whether one of the files that `seen` returned is gone or another one now."""
        try:
            return any(_identity(os.stat(path)) != identity for path, *identity in seen)
        except OSError:
            return True

    def path_of(self, file: str) -> str:
        """Return the path of a file that a pattern names; ``""`` is the store itself."""
        if file not in self._paths:
            if self.is_folder and not file:
                raise ConfigError(
                    f"{self.url} is a folder: each place in columns= begins with the name of a file, as in 'x.h5::images[]'"
                )
            missing = NoSuchNameError if self.is_folder else ConfigError  # a record may lack a file
            self._paths[file] = self._resolved(file, self._folders, f"the place {file!r}::…", ConfigError, missing)
        return self._paths[file]

    def descriptor(self, path: str) -> int:
        """Return an open descriptor of the file at `path`, which is open as long as the caller keeps this number."""
        found = self._descriptors.get(path)
        if found is None:
            try:
                found = _Descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            except OSError as error:
                raise FormatError(f"{self.url}: {path} cannot be read: {error.strerror}") from None
            identity = _identity(os.fstat(found))
            if self._seen.setdefault(path, identity) != identity:
                raise UnavailableError(f"{self.url}: {path} was replaced while in use or changed; open the store again")
            self._keep(self._descriptors, path, found)
        return found

    def file(self, path: str) -> h5py.File:
        """Return the open HDF5 file at `path`, which is open as long as the caller keeps it."""
        found = self._open.get(path)
        if found is None:
            url = self.url if path == self.path else path
            status, engine = engine_at(path, url)
            check_status(path, status, engine, "hdf5", url)
            check_hdf5_file(self.descriptor(path), url)
            found = open_hdf5_file(path, url, self.settings.locking, _CACHE)
            self._in_use[id(found)] = found  # by id: two openings of a file are equal
            self._keep(self._open, path, found)
        return found

    def _keep(self, kept: OrderedDict[str, Any], path: str, opened: Any) -> None:
        kept[path] = opened
        if len(kept) > self._most_open:
            kept.popitem(last=False)

    def resolve(self, name: str, parent: str, source: str, error: type[StoredsError] = FormatError) -> str:
        """Return the absolute path of the file that the file `parent` calls `name`, found as libhdf5 finds it.

        Raises `error`, which names `source`, if the file is missing or the user did not allow files outside the folder.
        """
        return self._resolved(name, _folders(parent), source, error, error)

    def _resolved(
        self, name: str, folders: Iterable[str], source: str, error: type[StoredsError], missing: type[StoredsError]
    ) -> str:
        names = [name, os.path.basename(name)] if os.path.isabs(name) else [name]
        paths = [os.path.realpath(os.path.join(folder, each)) for each in names for folder in dict.fromkeys(folders)]
        path = next(filter(os.path.isfile, paths), paths[0])
        if not self.settings.allow_outside and all(os.path.commonpath([root, path]) != root for root in self._roots):
            raise error(
                f"{self.url}: {source} leads to {path}, outside of the store's folder; allow_outside=True follows it, if "
                "you trust the author of the file with what this process reads"
            )
        if not os.path.isfile(path):
            raise missing(f"{self.url}: {source} leads to {path}, which is missing; copy it there, or correct the name")
        return path

    def find(self, address: Address) -> tuple[h5py.Group | h5py.Dataset, str]:
        """Return the object at an address, and the rest of the name if it names a column of a table."""
        found = self._checked.get(address)
        if found is None:
            found = self.locate(address)
            self.check(found[0])
            if self.remembers:
                self._checked[address] = found
        return found

    def locate(self, address: Address) -> tuple[h5py.Group | h5py.Dataset, str]:
        """Return what `find` returns, though its values may be out of reach."""
        found = self._located.get(address)
        if found is None:
            found = self._locate(address.name, self.path_of(address.file), 0)
            if self.remembers:
                self._located[address] = found
        return found

    def _locate(self, name: str, path: str, links: int) -> tuple[h5py.Group | h5py.Dataset, str]:
        file = self.file(path)
        at: h5py.Group | h5py.Dataset = file
        parts = [part for part in name.split("/") if part not in ("", ".")]
        for number, part in enumerate(parts):
            rest = "/".join(parts[number + 1 :])
            if isinstance(at, h5py.Dataset):
                return _keeping(at, file), "/".join(parts[number:])
            kind = _link_type(at, part)
            if kind is None:
                where = at.name if path == self.path else f"{path}::{at.name}"
                raise NoSuchNameError(f"{self.url}: {where} has no {part!r}; {suggest(part, at.keys(), 'names there')}")
            if kind != h5py.h5l.TYPE_HARD:
                return self._follow(at, part, path, rest, links)
            at = _opened(at, part)
        return _keeping(at, file), ""

    def _follow(
        self, parent: h5py.Group, part: str, path: str, rest: str, links: int
    ) -> tuple[h5py.Group | h5py.Dataset, str]:
        link, name = parent.get(_encoded(part), getlink=True), f"{parent.name.rstrip('/')}/{part}"
        if links >= _MOST_LINKS:
            raise FormatError(f"{self.url}: {name} is a link that leads through more than {_MOST_LINKS} others")
        if isinstance(link, h5py.ExternalLink):
            target, path = link.path, self.resolve(link.filename, path, f"the external link {name}")
        else:
            target = link.path if link.path.startswith("/") else f"{parent.name}/{link.path}"
        try:
            return self._locate(f"{target}/{rest}", path, links + 1)
        except NoSuchNameError:
            try:
                self._locate(target, path, links + 1)
            except NoSuchNameError:
                raise FormatError(f"{self.url}: the link {name} leads to {target}, which is missing") from None
            raise

    def dataset(self, address: Address) -> h5py.Dataset:
        """Return the dataset at an address."""
        found, rest = self.find(address)
        if rest or not isinstance(found, h5py.Dataset):
            raise FormatError(f"{self.url}: {address} is not a dataset")
        return found

    def dataset_in(self, path: str, name: str) -> h5py.Dataset:
        """Return a dataset, which was found before, of the file at `path`."""
        return self._locate(name, path, 0)[0]

    def group(self, address: Address) -> h5py.Group:
        """Return the group at an address; it may hold links."""
        found, rest = self.find(address)
        if rest or not isinstance(found, h5py.Group):
            raise FormatError(f"{self.url}: {address} is not a group")
        return found

    def check(self, found: h5py.Group | h5py.Dataset) -> None:
        """Raise FormatError if `found` is a dataset whose values cannot be read."""
        if not isinstance(found, h5py.Dataset):
            return
        what = f"{self.url}: dataset {found.name}"
        missing = [name for code, name in _filters(found) if not h5py.h5z.filter_avail(code)]
        if missing:
            raise FormatError(
                f"{what} is compressed with {missing[0]}, which this HDF5 lacks; "
                "`pip install hdf5plugin` and `import hdf5plugin` first, or convert the file with h5repack"
            )
        try:
            found.dtype  # noqa: B018  # raises for a type that NumPy lacks
        except TypeError as error:
            raise FormatError(
                f"{what} is of a type that NumPy lacks: {error}; columns= names the datasets to read"
            ) from None
        if found.external:
            raise FormatError(
                f"{what} lies in external files such as {found.external[0][0]!r}; gather them with h5repack"
            )
        if found.is_virtual:  # HDF5 returns zeros for a source that is missing
            raise FormatError(f"{what} is virtual: open its source files instead, as a pattern such as 'part-*.h5'")


def file_of(found: h5py.Group | h5py.Dataset) -> str:
    """Return the path of the file that holds an object which `Hdf5Files` found; ``.file.filename`` takes 100 times as long."""
    return str(found.keeps_open.filename)


def _opened(group: h5py.Group, name: str) -> h5py.Group | h5py.Dataset:
    """Return an object of a group; in half of the time of ``group[name]``, which opens the file again to see how it is open."""
    found = h5py.h5o.open(group.id, _encoded(name))
    if isinstance(found, h5py.h5d.DatasetID):
        return h5py.Dataset(found, readonly=True)
    if isinstance(found, h5py.h5g.GroupID):
        return h5py.Group(found)
    return group[_encoded(name)]


def _keeping(found: h5py.Group | h5py.Dataset, file: h5py.File) -> h5py.Group | h5py.Dataset:
    """Return an object of a file, which keeps it open: h5py invalidates the objects of a file that it closes."""
    found.keeps_open = file
    return found


def _folders(path: str) -> tuple[str, str]:
    """Return the folder of a path, and that of the file to which it leads if it is a symbolic link."""
    return os.path.dirname(path), os.path.dirname(os.path.realpath(path))


def _encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")  # h5py refuses the text of a name that is not UTF-8


def _link_type(group: h5py.Group, name: str) -> int | None:
    """Return the type of a link, or None if there is none; several times as fast as h5py's ``get(getlink=True)``."""
    try:
        return int(group.id.links.get_info(_encoded(name)).type)
    except (KeyError, RuntimeError):
        return None


def _identity(status: os.stat_result) -> list[int]:
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns]


def _filters(dataset: h5py.Dataset) -> list[tuple[int, str]]:
    properties = dataset.id.get_create_plist()
    filters = [properties.get_filter(number) for number in range(properties.get_nfilters())]
    return [(code, f"filter {code} ({name.decode(errors='replace') or 'unnamed'})") for code, _, _, name in filters]


_LIBRARY_GROUPS = (b"#refs#", b"#subsystem#")  # of MATLAB
_INDEX = b"_i_"  # PyTables keeps the index of the table x in the group _i_x


def names_in(files: Hdf5Files, group: Address, *, most: int | None = None) -> tuple[list[str], list[str]]:
    """Return the names of the datasets and of the groups in a group, through links too; of the first `most` members.

    Indexes of PyTables and what cells of MATLAB refer to are left out.
    """
    if (group, most) not in files.listed:
        datasets, groups, links = _split(files.group(group), most)
        for name in links:
            (datasets if isinstance(files.find(group.below(name))[0], h5py.Dataset) else groups).append(name)
        files.listed[group, most] = datasets, groups
    return files.listed[group, most]


def _split(group: h5py.Group, most: int | None = None) -> tuple[list[str], list[str], list[str]]:
    """Return the names of the datasets, of the groups and of the links in a group."""
    hard: list[bytes] = []
    links: list[bytes] = []

    def note(name: bytes, info: Any) -> bool | None:
        is_index = name.startswith(_INDEX) and group.id.links.exists(name[len(_INDEX) :])
        if not is_index and name not in _LIBRARY_GROUPS:
            (hard if info.type == h5py.h5l.TYPE_HARD else links).append(name)
        return True if len(hard) + len(links) == most else None  # True ends the iteration

    group.id.links.iterate(note, info=True)
    found: dict[int, list[bytes]] = {h5py.h5g.DATASET: [], h5py.h5g.GROUP: []}
    for name in hard:
        found.get(h5py.h5g.get_objinfo(group.id, name).type, []).append(name)  # a named type is neither
    return _decoded(found[h5py.h5g.DATASET]), _decoded(found[h5py.h5g.GROUP]), _decoded(links)


def _decoded(names: Iterable[bytes]) -> list[str]:
    return [name.decode("utf-8", "surrogateescape") for name in names]


MOST_WALKED = 1024  # datasets
_DEPTH = 16


@dataclass(frozen=True)
class Member:
    """A dataset below a group, and its path from there: ``observations/qpos``."""

    path: str
    dataset: h5py.Dataset


@dataclass(frozen=True)
class Unreadable:
    """What lies below a group and cannot be read: its path from there, why, and how many rows it has if that is known."""

    path: str
    why: str
    rows: int | None = None

    def __str__(self) -> str:
        return f"{self.path} ({self.why})"


def members(
    files: Hdf5Files,
    group: Address,
    *,
    skipped: list[Unreadable] | None = None,
    is_left: Callable[[str], bool] | None = None,
    most_groups: float = math.inf,
) -> Iterator[Member]:
    """Yield the first 1,024 datasets below a group, its own first. Follows links, but visits no group twice on one path.

    Parameters
    ----------
    files : Hdf5Files
    group : Address
    skipped : list of Unreadable, optional
        Gets the members that cannot be read. Without it, one in the group itself raises FormatError.
    is_left : callable, optional
        Whether to leave out the dataset at a path, without opening it.
    most_groups : float
        How many groups to visit; all by default.
    """
    if is_left is not None or most_groups < math.inf:
        walk = _Walk(files, group, skipped, is_left or (lambda path: False), most_groups)
        return itertools.islice(walk.below("", frozenset()), MOST_WALKED)
    found, left = files.walked.get(group, (None, []))
    if found is None or (left and skipped is None):
        left = []
        walk = _Walk(files, group, None if skipped is None else left, lambda path: False, math.inf)
        found = [*itertools.islice(walk.below("", frozenset()), MOST_WALKED)]
        if files.remembers:
            files.walked[group] = found, left
    if skipped is not None:
        skipped += left
    return iter(found)


class _Walk:
    """The datasets of a group, and of the groups below it, one group after the other."""

    def __init__(
        self,
        files: Hdf5Files,
        group: Address,
        skipped: list[Unreadable] | None,
        is_left: Callable[[str], bool],
        most_groups: float,
    ) -> None:
        self._files, self._group, self._skipped, self._is_left = files, group, skipped, is_left
        self._more = most_groups

    def below(self, prefix: str, above: frozenset[tuple[int, int]]) -> Iterator[Member]:
        """Yield the datasets below the group at `prefix`, which the groups `above` hold."""
        here = self._files.group(self._group.below(prefix))
        info = h5py.h5o.get_info(here.id)
        place = (info.fileno, info.addr)
        if place in above or self._more <= 0:
            return
        if len(above) > _DEPTH:
            self._skip(Unreadable(prefix.rstrip("/"), f"in more than {_DEPTH} groups"))
            return
        self._more -= 1
        datasets, inner, links = _split(here)
        paths = [f"{prefix}{name}" for name in inner]
        for path in (f"{prefix}{name}" for name in (*datasets, *links)):
            found = None if self._is_left(path) else self._found(path)
            if isinstance(found, Member):
                yield found
            elif found is not None:
                paths.append(found)
        for path in paths:  # in HDF5's order: sorting 100,000 names takes longer than the walk
            yield from self.below(f"{path}/", above | {place})

    def _found(self, path: str) -> Member | str | None:
        """Return a dataset, the path of a group behind a link, or None for what cannot be read."""
        rows = None
        try:
            found, _ = self._files.locate(self._group.below(path))
            if not isinstance(found, h5py.Dataset):
                return path
            rows = found.shape[0] if found.shape else None
            self._files.check(found)
        except FormatError as error:
            if self._skipped is None and "/" not in path:
                raise
            self._skip(Unreadable(path, str(error).removeprefix(f"{self._files.url}: "), rows))
            return None
        return Member(path, found)

    def _skip(self, member: Unreadable) -> None:
        if self._skipped is not None:
            self._skipped.append(member)


def describe(dataset: h5py.Dataset) -> str:
    """Return dtype and shape of a dataset as text."""
    dtype = dataset.dtype
    if h5py.check_string_dtype(dtype) is not None:
        name = "text"
    elif h5py.check_vlen_dtype(dtype) is not None:
        name = f"{h5py.check_vlen_dtype(dtype)} of variable length"
    elif h5py.check_ref_dtype(dtype) is not None:
        name = "references"
    else:
        name = "a table" if dtype.names else "opaque" if dtype.kind == "V" else str(dtype)
    shape = "nothing" if dataset.shape is None else f"[{', '.join(map(str, dataset.shape))}]"
    return f"{name} {shape}"


# Attributes that PyTables, MATLAB, netCDF and the HDF5 image and dimension-scale conventions write for themselves.
_LIBRARY_ATTRIBUTES = frozenset(
    ["CLASS", "VERSION", "TITLE", "FLAVOR", "EXTDIM", "PSEUDOATOM", "NAME", "H5PATH", "INTERLACE_MODE"]
)
_LIBRARY_PREFIXES = ("IMAGE_", "MATLAB_", "PYTABLES_", "_Netcdf4", "_NC")


def attributes(owner: h5py.Group | h5py.Dataset) -> dict[str, JSON]:
    """Return the attributes that are one number or one text each, without those that libraries write for themselves."""
    out: dict[str, JSON] = {}
    for name in owner.attrs:
        if name in _LIBRARY_ATTRIBUTES or name.startswith(_LIBRARY_PREFIXES):
            continue
        try:
            check_attribute(owner, name)
            value = owner.attrs[name]
        except (OSError, TypeError, ValueError, RuntimeError):  # damaged, of a type that NumPy lacks, or not one value
            continue
        if isinstance(value, np.ndarray) and value.size == 1:
            value = value.reshape(-1)[0]
        value = value.item() if isinstance(value, np.generic) else value
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if isinstance(value, (bool, int, float, str)):
            out[name] = value
    return out


def attribute_fields(found: Mapping[str, JSON]) -> dict[str, Field]:
    """Return the fields of attributes."""
    kinds: dict[type, Kind] = {bool: "bool", int: "int", float: "float", str: "str"}
    return {name: Field(kinds[type(value)]) for name, value in found.items()}
