"""Brings stores into a versioned store as members, makes one of them all, and removes what no version needs."""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from storeds._utils.text import some
from storeds.backends.opening import scheme_of
from storeds.backends.versions.document import Member, Version
from storeds.backends.versions.place import Leftover, VersionPlace
from storeds.errors import ConfigError, FormatError
from storeds.ops.growing import conflict, folder_of, last_version, member_of, next_version, publish, with_members
from storeds.ops.packing import append, pack
from storeds.ops.progress import ProgressHook
from storeds.protocols import Meta
from storeds.redaction import redact

__all__ = ["Cleaned", "clean", "commit", "compact", "merge", "unpublished_parts"]

_PART = re.compile(r"([0-9a-f]{16})-(\d+)-of-(\d+)(?:\.\w+)?")


def merge(
    url: str | os.PathLike[str], *others: str | os.PathLike[str], move: bool = False, message: str = ""
) -> Version:
    """Add native stores to a versioned store as members; a missing one is created.

    Parameters
    ----------
    url : str
        Of a versioned store.
    *others : str or path
        Native stores of the same engine, with the same fields. Files in its folder ``members`` become members as they are;
        others are copied as by `append`, or moved there with `move`. Collections of MongoDB are always copied. A member that is
        not copied has the classes of the store, or some of them or more in the same order.
    move : bool
        Rename the other files into the folder: nothing is copied, and they are no longer where they were.
    message : str
        For `log`.

    Raises
    ------
    ConfigError
        A store is of another engine, or cannot be moved, or its classes have other numbers.
    FormatError
        A store is not native, or has other fields.
    RecordError
        A record of a store is bad: all are read for their checksums.
    StoreExistsError
        A store is a member already.
    """
    place = folder_of(url)
    taken: list[tuple[Member, Meta]] = []
    if not others:
        raise ConfigError(f"{place.url}: name at least one store to merge")
    for other in others:
        if scheme_of(other, writing=False).partition("+")[0] != place.engine:
            shown = redact(os.fspath(other))
            raise ConfigError(f"{shown} is no store of {place.engine}: `storeds append` copies it into {place.url}")
        name = place.adopt(other, move=move)
        if name is not None:
            taken.append(member_of(place, name))
        else:
            _publish(place, taken, "merge", message)
            taken = []
            append(url, other, message=message)
    _publish(place, taken, "merge", message)
    return place.version()


def _publish(place: VersionPlace, taken: Sequence[tuple[Member, Meta]], action: str, message: str) -> None:
    if taken:
        publish(place, lambda base: with_members(place, base, taken, action, message))


def commit(url: str | os.PathLike[str], *, message: str = "") -> Version:
    """Publish the parts that ``pack(…, part="3/16")`` has written; the parts of each source become one version.

    Of a source that was packed in several numbers of parts, the first complete set counts.

    Raises
    ------
    ConfigError
        There are no parts that no version has, or some of a source are missing: the message names them.
    FormatError, RecordError
        A part is damaged.
    """
    place = folder_of(url)
    sources: dict[str, list[tuple[int, dict[int, str]]]] = defaultdict(list)
    for (source, count), names in sorted(unpublished_parts(place).items()):
        sources[source].append((count, names))
    if not sources:
        raise ConfigError(f"{place.url} has no parts to publish: storeds pack SOURCE {place.url} --part 1/2 writes one")
    chosen = []
    for sets in sources.values():
        count, names = max(sets, key=lambda each: len(each[1]) / each[0])
        missing = [str(number) for number in range(1, count + 1) if number not in names]
        if missing:
            raise ConfigError(
                f"{place.url} has {len(names)} of {count} parts; missing: {some(missing)}. Run storeds pack … --part "
                f"{missing[0]}/{count} again, with the same source and options"
            )
        chosen.append([names[number] for number in range(1, count + 1)])
    for members in chosen:
        _publish(place, [member_of(place, name) for name in members], "append", message)
    return place.version()


def unpublished_parts(place: VersionPlace) -> dict[tuple[str, int], dict[int, str]]:
    """Return the parts of sources that no version has: (hash of the source, number of parts) → number of a part → its member."""
    base = last_version(place)
    published = {
        found[1] for each in (base.members if base is not None else ()) if (found := _PART.fullmatch(each.name))
    }
    sets: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
    for name in place.member_names():
        found = _PART.fullmatch(name)
        if found is not None and found[1] not in published:
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
    place = folder_of(url)
    base = place.version()
    name = place.member_name(f"version-{base.number:08}")
    target = place.member_url(name)
    if not place.has_member(name):
        pack(place.version_url(base.number), target, resume=True, progress=progress)
    member, meta = member_of(place, name)
    if meta.id != base.id:
        raise FormatError(
            f"{redact(target)} is no copy of version {base.number} of {place.url}: remove it, and run storeds verify"
        )
    changes = {"members before": len(base.members)}
    version = next_version(place, base, [member], "compact", changes=changes, message=message)
    if not place.publish(version.number, version.to_text()):
        raise conflict(place, "compact")
    return version


@dataclass(frozen=True)
class Cleaned:
    """What `clean` removes, or has removed.

    Attributes
    ----------
    versions : list of int
        Their numbers.
    files : list
        The kind, path, size and time of each.
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
        Seconds. Younger versions and files stay: a file may belong to a version that is about to be published. Reading
        from a removed version raises `UnavailableError`.
    yes : bool
        By default nothing is removed, and the result says what would be.
    """
    place = folder_of(url)
    if not older_than >= 0:
        raise ConfigError(f"older_than is a number of seconds, not {older_than!r}")
    before = time.time() - older_than
    numbers = place.numbers()
    versions = {number: place.version(number) for number in numbers}
    gone = [number for number in numbers[:-1] if place.published(number) < before]
    kept = [version for number, version in versions.items() if number not in gone]
    names = {member.name for version in kept for member in version.members}
    former = {member.name for version in versions.values() for member in version.members}
    columns = {name for version in kept for member in version.members for name in member.files}
    files = [each for each in place.leftovers(names, columns, {*numbers} - {*gone}, former) if each.time < before]
    if yes:
        # Versions first: what a version needs is there as long as the version is.
        for each in sorted(files, key=lambda each: each.kind != "version"):
            place.remove(each)
    return Cleaned(gone, files, yes)
