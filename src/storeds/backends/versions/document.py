"""What a version of a versioned store says, and its text: members, their dropped records and own columns, and who made it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import xxhash

from storeds.errors import FormatError
from storeds.protocols import JSON, Field, Meta
from storeds.records.canonical_json import canonical_json
from storeds.records.fields import fields_from_json, fields_to_json
from storeds.records.meta import NATIVE

__all__ = ["Member", "Version"]

_FORMAT = "storeds/version/1"
_MEMBER = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")  # a name in the folder of members, never a path
_COLUMN = re.compile(r"[0-9a-f]{32}")
_CHECK = re.compile(r'\{"check":"([0-9a-f]{16})",')


@dataclass(frozen=True)
class Member:
    """A native store, and what a version makes of its records.

    Attributes
    ----------
    name : str
        Of its file.
    id, build : str
    count : int
        Records of the store.
    digests : str
        The column of the checksums of its records, with the columns of this version, 8 bytes each.
    kept : int
        Records that the version has.
    dropped : str or None
        The column of the positions that it has not, ascending.
    columns : dict of str to str
        Field → the column that replaces it, or adds it.
    lacks : tuple of str
        Fields that the store itself does not have.
    """

    name: str
    id: str
    build: str
    count: int
    digests: str
    kept: int
    dropped: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()

    @property
    def files(self) -> set[str]:
        """The columns that it needs."""
        return {self.digests, *self.columns.values()} | ({self.dropped} if self.dropped is not None else set())


@dataclass(frozen=True)
class Version:
    """One state of a versioned store.

    Attributes
    ----------
    engine : str
        The scheme of its members.
    number : int
    parent : int
        The number of the version that it was made of; 0 of the first.
    id : str
        `Meta.id` of the same records in one store.
    fields, attrs
        As in `Meta`.
    members : tuple
        In the order of the records.
    action : str
        ``append``, ``edit``, ``merge``, ``compact`` or ``rollback``.
    changes : dict
        What it changed → how many records.
    time : str
        ISO 8601, UTC.
    author, message : str
    """

    engine: str
    number: int
    parent: int
    id: str
    fields: Mapping[str, Field]
    attrs: Mapping[str, JSON]
    members: tuple[Member, ...]
    action: str
    changes: Mapping[str, int]
    time: str
    author: str
    message: str = ""

    @property
    def count(self) -> int:
        """Number of records."""
        return sum(member.kept for member in self.members)

    def meta(self, build: str) -> Meta:
        """Return what the store says as a backend."""
        return Meta(self.id, build, self.count, NATIVE, self.fields, self.attrs)

    def to_text(self) -> str:
        """Return the version as JSON whose first entry is the checksum of the rest."""
        members: list[JSON] = [
            {
                "build": each.build,
                "count": each.count,
                "digests": each.digests,
                "id": each.id,
                "kept": each.kept,
                "name": each.name,
                **({} if each.dropped is None else {"dropped": each.dropped}),
                **({"columns": dict(each.columns)} if each.columns else {}),
                **({"lacks": list(each.lacks)} if each.lacks else {}),
            }
            for each in self.members
        ]
        body = canonical_json(
            {
                "action": self.action,
                "attrs": dict(self.attrs),
                "author": self.author,
                "changes": dict(self.changes),
                "count": self.count,
                "engine": self.engine,
                "fields": fields_to_json(self.fields),
                "format": _FORMAT,
                "id": self.id,
                "members": members,
                "message": self.message,
                "number": self.number,
                "parent": self.parent,
                "time": self.time,
            }
        )
        return f'{{"check":"{_checksum(body[1:])}",{body[1:]}'

    @classmethod
    def from_text(cls, text: str, url: str) -> Version:
        """Return the version in a text; raises FormatError if it is damaged."""
        found = _CHECK.match(text)
        if found is None or found[1] != _checksum(text[found.end() :]):
            raise FormatError(f"{url}: this version does not match its checksum; open an older one with ?version=")
        try:
            body: Any = json.loads(text)
            if body["format"] != _FORMAT:
                raise FormatError(f"{url}: {body['format']!r} is newer than this storeds; upgrade storeds")
            members = tuple(_member(each) for each in body["members"])
            names = ("engine", "number", "parent", "id", "action", "time", "author", "message")
            fields, own = fields_from_json(body["fields"]), {name: body[name] for name in names}
            version = cls(fields=fields, attrs=body["attrs"], members=members, changes=body["changes"], **own)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise FormatError(f"{url}: this version is unreadable ({type(error).__name__}: {error})") from None
        if version.count != body["count"]:
            raise FormatError(f"{url}: its members have {version.count} records, and the version {body['count']}")
        return version


def _member(body: Mapping[str, Any]) -> Member:
    member = Member(**{**body, "lacks": tuple(body.get("lacks", ()))})
    if not _MEMBER.fullmatch(member.name) or not all(map(_COLUMN.fullmatch, member.files)):
        raise ValueError(f"{member.name!r} or a file of it is no name of a file in the store")
    if not 0 <= member.kept <= member.count:
        raise ValueError(f"{member.name!r} keeps {member.kept} of {member.count} records")
    return member


def _checksum(text: str) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode())
