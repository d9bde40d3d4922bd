"""The commands that look at a store: info, head, get, stats, show, verify."""

from __future__ import annotations

import json
import sys
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from storeds import ops
from storeds._utils.text import counted
from storeds.cli.app import (
    LOOK,
    AsJson,
    Layout,
    Options,
    StoreArgument,
    Where,
    command,
    named_values,
    print_json,
    print_result,
    print_table,
    progress,
    say,
    say_error,
    selecting,
)
from storeds.errors import ConfigError, RecordError, suggest

if TYPE_CHECKING:
    from storeds.protocols import Backend, Field, Record

__all__ = ["get", "head", "info", "show", "stats", "verify"]

_MAX_TEXT = 60  # characters of a value in a table


@command(LOOK, "storeds info train.lmdb")
def info(
    url: StoreArgument,
    layout: Layout = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Describe a store without reading blobs."""
    print_result(ops.info(url, layout=layout, options=named_values(option)), as_json=as_json)


@command(LOOK, "storeds stats train.lmdb", "storeds stats train.lmdb --where label=cat --all")
def stats(
    url: StoreArgument,
    examine_all: Annotated[bool, typer.Option("--all", help="Examine every picture: exact.")] = False,
    sample: Annotated[int, typer.Option(help="Otherwise so many, drawn at random.")] = 2000,
    where: Where = None,
    field: Annotated[str | None, typer.Option(help="The field of the pictures.")] = None,
    mode: Annotated[str, typer.Option(help="RGB or L, as the config says.")] = "RGB",
    workers: Annotated[int | None, typer.Option(help="Threads; one per CPU by default.")] = None,
    layout: Layout = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Measure the pictures of a store: mean and deviation for Normalize, sizes, classes, duplicates, damage."""
    from storeds.backends.opening import open_backend

    options = named_values(option)
    with progress("stats", quiet=as_json) as hook:
        found = ops.stats(
            url,
            where=selecting(where, lambda: [open_backend(url, layout=layout, **options)]),
            field=field,
            mode=mode,
            all=examine_all,
            sample=sample,
            workers=workers,
            layout=layout,
            options=options,
            progress=hook,
        )
    print_result(found, as_json=as_json)


Fields = Annotated[list[str] | None, typer.Option("--field", help="Only this field; may be repeated.")]
Output = Annotated[
    str | None, typer.Option("-o", "--output", help="Write the field of one record to this file, or - for stdout.")
]


@command(LOOK, "storeds head train.lmdb -n 20", "storeds head train.lmdb -o first.jpg")
def head(
    url: StoreArgument,
    count: Annotated[int | None, typer.Option("-n", min=1, help="How many records: 5, and 1 with -o.")] = None,
    field: Fields = None,
    output: Output = None,
    layout: Layout = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Show the first records: values as they are, and what is in pictures, bytes and arrays."""
    count = count or (5 if output is None else 1)
    _show_records(url, lambda _: 0, count, field, output, layout, option, as_json=as_json)


@command(LOOK, "storeds get train.lmdb cat/7.jpg", "storeds get train.lmdb cat/7.jpg -o 7.jpg")
def get(
    url: StoreArgument,
    key: Annotated[str, typer.Argument(help="The key of a record, or its position where records have no field key.")],
    count: Annotated[int, typer.Option("-n", min=1, help="How many records, from that one on.")] = 1,
    field: Fields = None,
    output: Output = None,
    layout: Layout = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Show one record, or write its picture or bytes as they are stored, with -o."""
    _show_records(url, lambda backend: _position(backend, key), count, field, output, layout, option, as_json=as_json)


def _show_records(
    url: str,
    begin: Callable[[Backend], int],
    count: int,
    names: list[str] | None,
    output: str | None,
    layout: str | None,
    option: list[str] | None,
    *,
    as_json: bool,
) -> None:
    """Print some records from the position `begin` on, or write the bytes of one."""
    from storeds.backends.opening import open_backend
    from storeds.ops.showing.records import described
    from storeds.records.verdict_fields import without_verdicts

    with open_backend(url, layout=layout, **named_values(option)) as backend:
        fields = without_verdicts(backend.meta.fields)
        for name in names or ():
            if name not in fields:
                raise ConfigError(f"{backend.url} has no field {name!r}; {suggest(name, fields, 'fields')}")
        if output is not None:
            name = _blob_field(backend, fields, names, count)
        first = begin(backend)
        positions = range(first, min(first + count, len(backend)))
        records = backend.get_many(positions)
    if output is not None:
        _write(output, records, name)
        return
    fields = {name: fields[name] for name in names} if names else fields
    rows = [
        {"error": each.reason or str(each)} if isinstance(each, RecordError) else described(each, fields)
        for each in records
    ]
    if as_json:
        print_json({"records": rows})
    elif count == 1 and rows:
        print_table(
            {"field": "left", "value": "left"}, ((name, _text(value)) for name, value in rows[0].items()), head=False
        )
    else:
        columns = {name: "right" if field.is_scalar else "left" for name, field in fields.items()}
        cells = ([_brief(each.get(name, "")) for name in fields] for each in rows)
        table = ((str(at), *row) for at, row in zip(positions, cells, strict=True))
        print_table({"record": "right", **columns}, table)
    bad = [record for record in records if isinstance(record, RecordError)]
    if bad and len(bad) == len(records):
        raise bad[0]
    for record in bad:
        say_error("error: ", str(record), "bold red")


def _blob_field(backend: Backend, fields: Mapping[str, Field], names: list[str] | None, count: int) -> str:
    """Return the field that a file can hold, of one record; by default the first picture, or else the first bytes."""
    blobs = [name for kind in ("image", "bytes") for name, each in fields.items() if each.kind == kind]
    name = (names or blobs or [""])[0]
    if name not in blobs:
        near = suggest(name, blobs, "fields of these kinds")
        raise ConfigError(f"{backend.url} has no picture or bytes {name!r}; {near}")
    if count > 1 or len(names or ()) > 1:
        raise ConfigError("-o writes one field of one record to a file: `storeds export` writes those of all records")
    return name


def _write(output: str, records: Sequence[Record | RecordError], name: str) -> None:
    """Write a field of the only record to a file, or to stdout."""
    if not records:
        raise ConfigError("the store is empty, so there is no record to write")
    (record,) = records
    if isinstance(record, RecordError):
        raise record
    if output == "-":
        sys.stdout.buffer.write(record[name])
        return
    try:
        Path(output).write_bytes(record[name])
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error.strerror}") from None


def _position(backend: Backend, key: str) -> int:
    """Return the position of the record with this key; raises ConfigError without one."""
    from storeds.records.columns import read_column
    from storeds.records.where import matching_positions

    declared = backend.meta.fields.get("key")
    if declared is None or declared.kind != "str":
        if key.isdecimal() and int(key) < len(backend):
            return int(key)
        raise ConfigError(f"{backend.url} has no field key, so name a position, 0 to {len(backend) - 1}, not {key!r}")
    found = matching_positions(backend, {"key": [key]})
    if len(found):
        return int(found[0])
    keys = sorted(read_column(backend, "key").tolist())
    at = bisect_left(keys, key)
    near = suggest(key, keys[max(at - 10, 0) : at + 10], "keys next to it")
    raise ConfigError(f"{backend.url} has no record with key {key!r}; {near}")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _brief(value: Any) -> str:
    text = _text(value)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"


@command(
    LOOK,
    "storeds show train.lmdb -o page.html",
    "storeds show train.lmdb --damaged -o damaged.png",
    "storeds show train.toml",
)
def show(
    source: Annotated[str, typer.Argument(metavar="STORE", help="A store: a URL, a file or a folder; or a config.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="A .html page, or a .png picture.")] = Path(
        "page.html"
    ),
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="At most so many records.")] = 200,
    where: Where = None,
    keys_file: Annotated[Path | None, typer.Option(help="Only records whose key is a line of this file.")] = None,
    worst: Annotated[bool, typer.Option("--worst", help="Damaged records first, then unusual numbers.")] = False,
    damaged: Annotated[
        bool, typer.Option("--damaged", help="Verify the store first, and show the worst 30 records of each kind.")
    ] = False,
    as_trained: Annotated[
        Path | None, typer.Option(help="A training config: show its transforms in four epochs too.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="A split of the config.")] = None,
    layout: Layout = None,
    option: Options = None,
) -> None:
    """Show records of a store in one file: pictures, masks, boxes, captions, damage and counts."""
    from storeds.backends.opening import open_backend
    from storeds.ops.showing import check_target, configured_datasets

    check_target(output)
    options = named_values(option)
    if damaged:
        if where or keys_file or worst or as_trained or split:
            raise ConfigError(
                "--damaged shows what `storeds verify` finds in a whole store: leave out the other choices"
            )
        with progress("verify", quiet=False) as hook:
            report = ops.verify(source, layout=layout, options=options, progress=hook)
        page = ops.show(source, report.worst()[:count], layout=layout, options=options)
        page.save(output)
        say(f"{output}: {counted(len(page.records), 'damaged record')}")
        return

    def stores() -> list[Backend]:
        datasets = configured_datasets(source, as_trained, split)
        return [each.backend for each in datasets or ()] or [open_backend(source, layout=layout, **options)]

    page = ops.show(
        source,
        count=count,
        where=selecting(where, stores),
        keys_file=keys_file,
        worst_first=worst,
        config=as_trained,
        split=split,
        layout=layout,
        options=options,
    )
    page.save(output)
    say(f"{output}: {page.title}")


@command(LOOK, "storeds verify train.lmdb", finds=True)
def verify(
    url: StoreArgument,
    workers: Annotated[int | None, typer.Option(help="Processes that check; one per CPU by default.")] = None,
    layout: Layout = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Check every record, image and column of a store. The exit code is 1 if something is wrong."""
    options = named_values(option)
    with progress("verify", quiet=as_json) as hook:
        report = ops.verify(url, workers=workers, layout=layout, options=options, progress=hook)
    print_result(report, as_json=as_json)
    if not report.ok:
        raise typer.Exit(1)
