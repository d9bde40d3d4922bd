"""The commands of versioned stores: append, edit, merge, commit, log, rollback, compact, clean."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from storeds import ops
from storeds._utils.text import byte_size, counted
from storeds.cli.app import GROW, AsJson, command, named_values, print_json, print_table, progress, say
from storeds.errors import ConfigError
from storeds.ops import OnBad

if TYPE_CHECKING:
    from storeds.backends.versions.document import Version

__all__ = ["append", "clean", "commit", "compact", "edit", "log", "merge", "rollback"]

Store = Annotated[str, typer.Argument(metavar="STORE", help="A versioned store, lmdb://data/train/ with a slash.")]
Message = Annotated[str, typer.Option("--message", "-m", help="Why, for storeds log.")]
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


@command(
    GROW, "storeds append lmdb://data/train/ photos-may/", "storeds append hdf5://data/train/ a.csv b.csv -m 'May'"
)
def append(
    url: Store,
    source: Annotated[list[str], typer.Argument(metavar="SOURCE…", help="As for pack; each becomes a member.")],
    kind: Annotated[str | None, typer.Option(help="The kind of the sources, if not detected.")] = None,
    on_bad: Annotated[
        OnBad, typer.Option(help="Bad items: publish nothing, or leave them out, or keep them.")
    ] = "raise",
    option: Annotated[
        list[str] | None, typer.Option("--option", help="An option of the source, name=value: `storeds formats csv`.")
    ] = None,
    message: Message = "",
    as_json: AsJson = False,
) -> None:
    """Add the records of sources to a versioned store; a missing store is created."""
    for each in source:
        with progress("append", quiet=as_json) as hook:
            ops.append(url, each, message=message, kind=kind, on_bad=on_bad, progress=hook, **named_values(option))
    _say(ops.log(url)[0], as_json)


@command(
    GROW,
    "storeds edit lmdb://data/train/ --set labels.csv -m 'relabelled'",
    "storeds edit lmdb://data/train/ --drop bad.txt --drop-where 'width < 64'",
)
def edit(
    url: Store,
    set_: Annotated[str | None, typer.Option("--set", help="A CSV or Parquet file: a key, and fields to set.")] = None,
    drop: Annotated[str | None, typer.Option(help="A file of keys, one a line, whose records are dropped.")] = None,
    drop_where: Annotated[
        str | None, typer.Option(help="Drop the records that meet a condition: 'label == 3'.")
    ] = None,
    on: Annotated[str, typer.Option(help="The field that is the key.")] = "key",
    message: Message = "",
    as_json: AsJson = False,
) -> None:
    """Set values and drop records, as one new version."""
    _say(ops.edit(url, set=set_, drop=drop, drop_where=drop_where, on=on, message=message), as_json)


@command(GROW, "storeds merge lmdb://data/train/ a.lmdb b.lmdb --move")
def merge(
    url: Store,
    other: Annotated[list[str], typer.Argument(metavar="OTHER…", help="Native stores of the same engine.")],
    move: Annotated[bool, typer.Option("--move", help="Move their files into the store instead of copying.")] = False,
    message: Message = "",
    as_json: AsJson = False,
) -> None:
    """Make members of stores that are there."""
    _say(ops.merge(url, *other, move=move, message=message), as_json)


@command(GROW, "storeds commit lmdb://data/train/")
def commit(url: Store, message: Message = "", as_json: AsJson = False) -> None:
    """Publish the parts that `storeds pack --part` has written, when all are there."""
    _say(ops.commit(url, message=message), as_json)


@command(GROW, "storeds log lmdb://data/train/")
def log(url: Store, as_json: AsJson = False) -> None:
    """List the versions: what changed, when, by whom."""
    versions = ops.log(url)
    if as_json:
        print_json({"versions": [_summary(each) for each in versions]})
        return
    print_table(
        {"version": "right", "records": "right", "what": "left", "when": "left", "who": "left", "why": "left"},
        ((str(each.number), f"{each.count:,}", _what(each), each.time, each.author, each.message) for each in versions),
    )


@command(GROW, "storeds rollback lmdb://data/train/ 7")
def rollback(
    url: Store,
    number: Annotated[int, typer.Argument(metavar="VERSION", help="The version whose records come back.")],
    message: Message = "",
    as_json: AsJson = False,
) -> None:
    """Publish a new version with the records of an older one."""
    _say(ops.rollback(url, number, message=message), as_json)


@command(GROW, "storeds compact lmdb://data/train/")
def compact(url: Store, message: Message = "", as_json: AsJson = False) -> None:
    """Copy all records into one member, and publish it."""
    with progress("compact", quiet=as_json) as hook:
        version = ops.compact(url, message=message, progress=hook)
    _say(version, as_json)


@command(GROW, "storeds clean lmdb://data/train/ --older-than 30d", "storeds clean lmdb://data/train/ --yes")
def clean(
    url: Store,
    older_than: Annotated[str, typer.Option(help="Keep younger versions and files: 30d, 12h, 45m, 0s.")] = "30d",
    yes: Annotated[bool, typer.Option("--yes", help="Remove them; by default they are listed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove old versions, and files that no kept version needs."""
    found = re.fullmatch(r"(\d+)([smhdw])", older_than)
    if found is None:
        raise ConfigError(f"--older-than is a number and s, m, h, d or w, such as 30d, not {older_than!r}")
    report = ops.clean(url, older_than=int(found[1]) * _SECONDS[found[2]], yes=yes)
    if as_json:
        files = [{"path": str(each.path), "bytes": each.size} for each in report.files]
        print_json({"versions": report.versions, "files": files, "bytes": report.bytes, "done": report.done})
        return
    for each in report.files:
        say(f"{byte_size(each.size):>10}  {each.path}")
    done = "removed" if report.done else "would be removed; --yes does it"
    say(
        f"{counted(len(report.versions), 'version')} and {counted(len(report.files), 'file')}, {byte_size(report.bytes)}: {done}"
    )


def _summary(version: Version) -> dict[str, Any]:
    names = ("number", "parent", "id", "count", "action", "time", "author", "message")
    return {
        **{name: getattr(version, name) for name in names},
        "changes": dict(version.changes),
        "members": len(version.members),
    }


def _what(version: Version) -> str:
    changes = ", ".join(f"{count:,} {what}" for what, count in version.changes.items())
    return f"{version.action}: {changes}" if changes else version.action


def _say(version: Version, as_json: bool) -> None:
    if as_json:
        print_json(_summary(version))
    else:
        say(f"version {version.number}: {_what(version)}; {counted(version.count, 'record')}, id {version.id}")
