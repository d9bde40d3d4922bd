"""Brings stores into a versioned store as members, makes one of them all, and removes what no version needs."""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from storeds._utils.text import some
from storeds._utils.urls import file_path
from storeds.backends.opening import scheme_of
from storeds.backends.staging import reporting
from storeds.backends.versions.document import Member, Version
from storeds.backends.versions.folder import SUFFIXES, Leftover, VersionFolder
from storeds.errors import ConfigError, FormatError, StoreExistsError
from storeds.ops.growing import conflict, folder_of, last_version, member_of, next_version, publish, with_members
from storeds.ops.packing import append, pack
from storeds.ops.progress import ProgressHook
from storeds.protocols import Meta

__all__ = ["Cleaned", "clean", "commit", "compact", "merge", "unpublished_parts"]

_PART = re.compile(r"([0-9a-f]{16})-(\d+)-of-(\d+)\.\w+")


def merge(
    url: str | os.PathLike[str], *others: str | os.PathLike[str], move: bool = False, message: str = ""
) -> Version:
    """Add native stores to a versioned store as members; a missing one is created.

    Parameters
    ----------
    url : str
        Of a versioned store.
    *others : str or path
        Native stores of the same engine, with the same fields. Those in its folder ``members`` become members as they are;
        others are copied as by `append`, or moved there with `move`. A member that is not copied has the classes of the store,
        or some of them or more in the same order.
    move : bool
        Rename the other stores into the folder: nothing is copied, and they are no longer where they were.
    message : str
        For `log`.

    Raises
    ------
    ConfigError
        A store is of another engine, or its classes have other numbers.
    FormatError
        A store is not native, or has other fields.
    RecordError
        A record of a store is bad: all are read for their checksums.
    StoreExistsError
        A store is a member already.
    """
    folder = folder_of(url)
    taken: list[tuple[Member, Meta]] = []
    if not others:
        raise ConfigError(f"{folder.url}: name at least one store to merge")
    for other in others:
        path = file_path(os.fspath(other))[0]
        if scheme_of(path, writing=False) != folder.engine:
            raise ConfigError(f"{path} is no store of {folder.engine}: `storeds append` copies it into {folder.url}")
        is_inside = os.path.dirname(os.path.realpath(path)) == os.path.realpath(folder.members)
        if is_inside or move:
            taken.append(member_of(folder, os.path.basename(path) if is_inside else _moved(folder, path)))
        else:
            _publish(folder, taken, "merge", message)
            taken = []
            append(url, path, message=message)
    _publish(folder, taken, "merge", message)
    return Version.from_text(folder.text(), folder.url)


def _moved(folder: VersionFolder, path: str) -> str:
    """Move a store into the folder of members, and return its name there."""
    name = os.path.splitext(os.path.basename(path))[0] + SUFFIXES[folder.engine]
    target = folder.member_path(name)
    if os.path.lexists(target):
        raise StoreExistsError(f"{target} exists: rename {path}, then merge it")
    with reporting(target, Path(folder.path)):
        os.makedirs(folder.members, exist_ok=True)
        os.rename(path, target)
    return name


def _publish(folder: VersionFolder, taken: Sequence[tuple[Member, Meta]], action: str, message: str) -> None:
    if taken:
        publish(folder, lambda base: with_members(folder, base, taken, action, message))


def commit(url: str | os.PathLike[str], *, message: str = "") -> Version:
    """Publish the parts that ``pack(…, part="3/16")`` has written, each set of parts as one version.

    Raises
    ------
    ConfigError
        There are no parts that no version has, or some of a set are missing: the message names them.
    FormatError, RecordError
        A part is damaged.
    """
    folder = folder_of(url)
    sets = unpublished_parts(folder)
    if not sets:
        raise ConfigError(
            f"{folder.url} has no parts to publish: storeds pack SOURCE {folder.url} --part 1/2 writes one"
        )
    for (_, count), names in sets.items():
        missing = [str(number) for number in range(1, count + 1) if number not in names]
        if missing:
            raise ConfigError(
                f"{folder.url} has {len(names)} of {count} parts; missing: {some(missing)}. Run storeds pack … --part "
                f"{missing[0]}/{count} again, with the same source and options"
            )
    for (_, count), names in sets.items():
        _publish(folder, [member_of(folder, names[number]) for number in range(1, count + 1)], "append", message)
    return Version.from_text(folder.text(), folder.url)


def unpublished_parts(folder: VersionFolder) -> dict[tuple[str, int], dict[int, str]]:
    """Return the parts that no version has: (hash of the source, number of parts) → number of a part → its member."""
    base = last_version(folder)
    published = {member.name for member in base.members} if base is not None else set[str]()
    sets: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
    for name in folder.member_names():
        found = _PART.fullmatch(name)
        if found is not None and name not in published:
            sets[found[1], int(found[3])][int(found[2])] = name
    return sets


def compact(url: str | os.PathLike[str], *, message: str = "", progress: ProgressHook | None = None) -> Version:
    """Copy the records of the last version into one new member, and publish a version of it alone, with the same id.

    Raises
    ------
    StoreExistsError
        Another process has published a version meanwhile.
    FormatError
        The copy has another id: a member is damaged in a way that no checksum of a record shows.
    """
    folder = folder_of(url)
    base = Version.from_text(folder.text(), folder.url)
    name = f"version-{base.number:08}{SUFFIXES[folder.engine]}"
    target = f"{folder.engine}://{folder.member_path(name)}"
    if not os.path.exists(folder.member_path(name)):
        pack(f"{folder.url}?version={base.number}", target, resume=True, progress=progress)
    member, meta = member_of(folder, name)
    if meta.id != base.id:
        raise FormatError(
            f"{target} is no copy of version {base.number} of {folder.url}: remove it, and run storeds verify"
        )
    changes = {"members before": len(base.members)}
    version = next_version(folder, base, [member], "compact", changes=changes, message=message)
    if not folder.publish(version.number, version.to_text()):
        raise conflict(folder, "compact")
    return version


@dataclass(frozen=True)
class Cleaned:
    """What `clean` removes, or has removed.

    Attributes
    ----------
    versions : list of int
        Their numbers.
    files : list
        The path, size and time of each.
    done : bool
    """

    versions: list[int]
    files: list[Leftover]
    done: bool

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(each.size for each in self.files)


def clean(url: str | os.PathLike[str], *, older_than: float = 30 * 86400, yes: bool = False) -> Cleaned:
    """Remove versions of a store that are older, and files that no kept version needs; the last version always stays.

    Parameters
    ----------
    url : str
        Of a versioned store.
    older_than : float
        Seconds. Younger versions and files stay: a file may belong to a version that is about to be published. Whoever trains
        from a version that is removed gets `UnavailableError`.
    yes : bool
        By default nothing is removed, and the result says what would be.
    """
    folder = folder_of(url)
    if not older_than >= 0:
        raise ConfigError(f"older_than is a number of seconds, not {older_than!r}")
    before = time.time() - older_than
    numbers = folder.numbers()
    versions = {number: Version.from_text(folder.text(number), folder.url) for number in numbers}
    gone = [number for number in numbers[:-1] if folder.published(number) < before]
    kept = [version for number, version in versions.items() if number not in gone]
    names = {member.name for version in kept for member in version.members}
    former = {member.name for version in versions.values() for member in version.members}
    columns = {name for version in kept for member in version.members for name in member.files}
    files = [each for each in folder.leftovers(names, columns, {*numbers} - {*gone}, former) if each.time < before]
    if yes:
        # Versions first: what a version needs is there as long as the version is.
        for each in sorted(files, key=lambda each: each.path.suffix != ".json"):
            each.path.unlink(missing_ok=True)
    return Cleaned(gone, files, yes)
