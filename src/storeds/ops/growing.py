"""Adds members to a versioned store: where they are written, the numbers of their classes, and the version that has them."""

from __future__ import annotations

import datetime
import getpass
import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import xxhash

from storeds._utils.urls import StoreURL
from storeds.backends.class_numbers import ClassNumbers, join_classes
from storeds.backends.joining import alike
from storeds.backends.opening import open_backend
from storeds.backends.store import Store
from storeds.backends.versions.document import Member, Version
from storeds.backends.versions.naming import version_place
from storeds.backends.versions.place import VersionPlace
from storeds.backends.versions.reading import kept_positions
from storeds.errors import ConfigError, FormatError, StoreExistsError, StoreNotFoundError
from storeds.layouts.files.rows import BadItem, Rows
from storeds.protocols import JSON, Meta, Record
from storeds.records.canonical_json import canonical_json
from storeds.records.codec import ContentHash
from storeds.records.verdict_fields import without_verdicts
from storeds.redaction import redact

__all__ = [
    "Plain",
    "conflict",
    "folder_of",
    "last_version",
    "member_of",
    "next_version",
    "publish",
    "target_of",
    "with_members",
]

_TRIES = 1000


def folder_of(url: str | os.PathLike[str]) -> VersionPlace:
    """Return where a versioned store is; raises ConfigError for any other URL."""
    folder = version_place(StoreURL.parse(url))
    if folder is None:
        raise ConfigError(
            f"{redact(os.fspath(url))} is no versioned store: its URL ends in a slash, as in lmdb://data/train/"
        )
    return folder


def last_version(folder: VersionPlace) -> Version | None:
    """Return the last version of a store; None if there is none."""
    try:
        return folder.version()
    except StoreNotFoundError:
        return None


def next_version(
    folder: VersionPlace, base: Version | None, members: Sequence[Member], action: str, **own: Any
) -> Version:
    """Return the version that follows `base`, with these members; its fields and attrs are those of `base` if none are given.

    Reads the checksums of all records, and no record.
    """
    if base is not None:
        own = {"fields": base.fields, "attrs": base.attrs, **own}
    content = ContentHash()
    for member, digests in zip(members, folder.get_each([member.digests for member in members]), strict=True):
        if digests.shape != (member.count, 8):
            raise FormatError(f"{folder.url}: {member.name} has {member.count} records and other checksums")
        content.update((digests if member.dropped is None else digests[kept_positions(folder, member)]).tobytes())
    number = 1 if base is None else base.number + 1
    return Version(
        engine=folder.engine,
        number=number,
        parent=number - 1,
        id=content.finish(own["fields"], own["attrs"]),
        members=tuple(members),
        action=action,
        time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        author=_author(),
        **own,
    )


def _author() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without an entry, as in some containers
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def publish(folder: VersionPlace, make: Callable[[Version | None], Version]) -> Version:
    """Publish what `make` returns for the last version; again if another process publishes one meanwhile."""
    for _ in range(_TRIES):
        version = make(last_version(folder))
        if folder.publish(version.number, version.to_text()):
            return version
    raise StoreExistsError(f"{folder.url}: other processes publish versions without a pause; try again")


def conflict(folder: VersionPlace, what: str) -> StoreExistsError:
    """Return the error of a change that another version has made wrong."""
    last = last_version(folder)
    by = "" if last is None else f" (version {last.number}, {last.action} by {last.author})"
    return StoreExistsError(f"{folder.url} got another version meanwhile{by}, and nothing was changed: {what} again")


def member_of(folder: VersionPlace, name: str) -> tuple[Member, Meta]:
    """Return a store among the members as a member with all of its records, and its meta. Reads and verifies them."""
    folder.fetch(name)
    with open_backend(folder.member_url(name), layout="native") as store:
        if not isinstance(store, Store):
            raise FormatError(f"{store.url} is no native store of {folder.engine}")
        meta = store.meta
        member = Member(name, meta.id, meta.build, meta.count, folder.put(store.digests()), meta.count)
    return member, meta


def with_members(
    folder: VersionPlace, base: Version | None, added: Sequence[tuple[Member, Meta]], action: str, message: str
) -> Version:
    """Return the version that has more members than `base`.

    Raises
    ------
    StoreExistsError
        It has one of them already, or classes that are not those of the members.
    FormatError
        A member has other fields.
    """
    members = list(base.members) if base is not None else []
    first = added[0][1] if base is None else base.meta("")
    attrs = first.attrs
    alike([SimpleNamespace(url=folder.url, meta=first), *(SimpleNamespace(url=m.name, meta=meta) for m, meta in added)])
    names = {member.name for member in members}
    for member, meta in added:
        if member.name in names:
            raise StoreExistsError(f"{folder.url} has the member {member.name} already: nothing was added")
        together = _together(attrs, meta.attrs)
        if together is None and action == "append":  # the classes were fitted to an older version
            raise conflict(folder, action)
        if together is None:
            raise ConfigError(
                f"{member.name} and {folder.url} number their classes differently; `storeds append` copies it, by the names"
            )
        attrs = together
        lacks = tuple(name for name in first.fields if name not in meta.fields)
        members.append(replace(member, lacks=lacks))
        names.add(member.name)
    changes = {"added": sum(member.kept for member, _ in added)}
    return next_version(
        folder, base, members, action, fields=first.fields, attrs=attrs, changes=changes, message=message
    )


class Plain:
    """A store that is written as a whole."""

    resumes = False
    """Whether an interrupted write goes on without being asked to."""

    def __init__(self, url: str) -> None:
        self.url = url

    def fitted(self, rows: Rows) -> Rows:
        """Return the rows as the store has them."""
        return rows

    def share(self, count: int) -> tuple[int, int]:
        """Return the first of `count` items that it gets, and the end of them."""
        return 0, count

    def left(self, plan: JSON) -> Meta | None:
        """Return what an earlier run wrote and did not publish."""
        return None

    def published(self, meta: Meta) -> Meta:
        """Return the meta of the store after a writer published `meta`."""
        return meta


class Growing(Plain):
    """A new member of a versioned store.

    The name of a member is a hash of what it is made of. So a run that was killed is repeated by the same call: it goes on
    with the member that it finds, and what is there already is not added again.
    """

    resumes = True

    def __init__(self, folder: VersionPlace, url: str, message: str = "", part: str | None = None) -> None:
        self.folder, self.message, self._part = folder, message, None if part is None else _parse_part(part)
        self._base = last_version(folder)
        super().__init__(url)

    def fitted(self, rows: Rows) -> Rows:
        # docstring inherited
        base = self._base
        if base is None:
            return rows
        given: Any = SimpleNamespace(url="the source", meta=Meta("", "", 0, "", rows.fields, rows.attrs))
        stored: Any = SimpleNamespace(url=self.folder.url, meta=base.meta(""))
        lacking = [name for name in without_verdicts(base.fields) if name not in rows.fields]
        if lacking and [*rows.fields] == [*without_verdicts(base.fields)][: len(rows.fields)]:
            raise ConfigError(
                f"the source lacks {', '.join(lacking)}, which {self.folder.url} has: pack the source into another versioned "
                "store, give each record a value there (`storeds edit --set`), then append that store"
            )
        alike([stored, given])
        classes, numbers = join_classes([stored, given])
        attrs = {**rows.attrs, **base.attrs, **({} if classes is None else {"classes": classes})}
        return replace(rows, attrs=attrs, finish=_renumbered(rows, numbers.get(1)))

    def share(self, count: int) -> tuple[int, int]:
        # docstring inherited
        number, of = self._part or (1, 1)
        return count * (number - 1) // of, count * number // of

    def left(self, plan: JSON) -> Meta | None:
        # docstring inherited
        part = "" if self._part is None else "-{}-of-{}".format(*self._part)
        name = xxhash.xxh3_128_hexdigest(canonical_json(plan).encode())[:16]
        self._name = self.folder.member_name(f"{name}{part}")
        self.url = self.folder.member_url(self._name)
        for member in () if self._base is None else self._base.members:
            if member.name == self._name:
                raise StoreExistsError(
                    f"{self.folder.url} has these records already, as the member {member.name}: nothing was added"
                )
        if not self.folder.has_member(self._name):
            return None
        return member_of(self.folder, self._name)[1]

    def published(self, meta: Meta) -> Meta:
        # docstring inherited
        if self._part is not None:  # `commit` publishes it with the others
            self.folder.deliver(self._name)
            return meta
        member, _ = member_of(self.folder, self._name)

        def make(base: Version | None) -> Version:
            return with_members(self.folder, base, [(member, meta)], "append", self.message)

        version = publish(self.folder, make)
        build = f"version {version.number}"
        return replace(meta, id=version.id, count=version.count, attrs=version.attrs, build=build)


def _renumbered(rows: Rows, numbers: ClassNumbers | None) -> Callable[[Record], Record] | None:
    """Return what finishes the records of rows, with the class numbers of the store."""
    if numbers is None:
        return rows.finish

    def finish(values: Record) -> Record:
        try:
            return numbers.record(values if rows.finish is None else rows.finish(values))
        except ValueError as error:
            raise BadItem(str(error)) from None

    return finish


def _together(one: Mapping[str, JSON], other: Mapping[str, JSON]) -> Mapping[str, JSON] | None:
    """Return the attributes of a store that grows; None if its classes have other numbers. Attributes that it has stay."""
    first, second = one.get("classes"), other.get("classes")
    if isinstance(first, list) and isinstance(second, list):
        shorter, longer = sorted((first, second), key=len)
        return {**other, **one, "classes": longer} if longer[: len(shorter)] == shorter else None
    return {**other, **one} if first == second else None


def _parse_part(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise ConfigError(f"part is a number of a part and how many there are, such as '3/16', not {text!r}")
    return int(found[1]), int(found[2])


def target_of(url: str, message: str = "", *, part: str | None = None, append: bool = False) -> Plain:
    """Return where `url` is written.

    Raises
    ------
    StoreExistsError
        A versioned store is there, and nothing says that it may grow.
    ConfigError
        The store cannot grow.
    """
    folder = version_place(StoreURL.parse(url))
    if folder is None:
        if append:
            raise ConfigError(
                f"{redact(url)} names one store, which never changes: append to a versioned store, whose URL ends in a slash, as in "
                "lmdb://data/train/; `storeds merge` makes one of stores that are there"
            )
        if part is not None:
            raise ConfigError(
                f"{url}: parts are of a versioned store, whose URL ends in a slash, as in lmdb://data/train/"
            )
        return Plain(url)
    growing = Growing(folder, url, message, part)
    if growing._base is not None and not append and part is None:
        raise StoreExistsError(f"{folder.url} exists; `storeds append` (storeds.append) adds records to it")
    return growing
