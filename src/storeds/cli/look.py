"""The commands that look at records: stats, head, get, show."""

from __future__ import annotations

import json
import sys
from bisect import bisect_left
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from storeds import ops
from storeds._utils.text import counted
from storeds.cli.app import (
    AsJson,
    Layout,
    Options,
    StoreArgument,
    Where,
    app,
    command,
    named_values,
    print_json,
    print_table,
    progress,
    say,
    selecting,
)
from storeds.cli.show import _brief_counts
from storeds.errors import ConfigError, RecordError, suggest

if TYPE_CHECKING:
    from storeds.ops.statistics import Stats
    from storeds.protocols import Backend

__all__ = ["get", "head", "show", "stats"]

_MAX_TEXT = 60  # characters of a value in a table


@app.command()
@command
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
    if as_json:
        print_json(found.to_json())
    else:
        _show_stats(found)


def _show_stats(found: Stats) -> None:
    from storeds.ops.common import listed

    columns = {"": "left"} | dict.fromkeys(("min", "5 %", "median", "95 %", "max", "mean"), "right")
    digits = {"aspect_ratio": 2}
    print_table(
        columns,
        (
            (name.replace("_", " "), *(f"{value:,.{digits.get(name, 0)}f}" for value in spread.values()))
            for name, spread in found.sizes.items()
        ),
    )
    if found.classes is not None:
        say(f"classes: {_brief_counts(found.classes)}")
    damaged = sum(found.damaged.values())
    say(f"damaged: {damaged:,} of {found.judged:,}" + (f" ({listed(found.damaged)})" if damaged else ""))
    say(f"exact duplicates: {found.duplicates:,}")
    for name, values, errors in (("mean", found.mean, found.mean_error), ("std", found.std, found.std_error)):
        pairs = zip(values, errors, strict=True)
        say(f"{name}: " + ", ".join(f"{value:.4f}" + (f" ± {error:.4f}" if error else "") for value, error in pairs))
    if found.decoded < found.examined:
        say(f"mean and std are of the {found.decoded:,} that decode in mode {found.mode}")
    more = "" if found.is_exact else "; --all is exact"
    say(f"{found.url}: {found.examined:,} of {counted(found.count, 'record')} examined{more}")


@app.command()
@command
def head(
    url: StoreArgument,
    count: Annotated[int, typer.Option("-n", min=1, help="How many.")] = 5,
    layout: Layout = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Show the first records: values as they are, and what is in pictures, bytes and arrays."""
    from storeds.backends.opening import open_backend
    from storeds.ops.showing.records import described
    from storeds.records.verdict_fields import without_verdicts

    with open_backend(url, layout=layout, **named_values(option)) as backend:
        fields = without_verdicts(backend.meta.fields)
        records = backend.get_many(range(min(count, len(backend))))
    rows = [
        {"error": each.reason or str(each)} if isinstance(each, RecordError) else described(each, fields)
        for each in records
    ]
    if as_json:
        print_json({"records": rows})
        return
    columns = {name: "right" if field.is_scalar else "left" for name, field in fields.items()}
    cells = ([_brief(each.get(name, "")) for name in fields] for each in rows)
    print_table({"record": "right", **columns}, ((str(at), *row) for at, row in enumerate(cells)))
    for record in records:
        if isinstance(record, RecordError):
            say(str(record))


@app.command()
@command
def get(
    url: StoreArgument,
    key: Annotated[str, typer.Argument(help="The key of a record, or its position where records have no field key.")],
    output: Annotated[str | None, typer.Option("-o", "--output", help="The file to write, or - for stdout.")] = None,
    field: Annotated[str | None, typer.Option(help="The field to write; by default the first picture.")] = None,
    layout: Layout = None,
    option: Options = None,
) -> None:
    """Write a picture, or bytes, of one record as they are stored. Without -o, print the record as JSON."""
    from storeds.backends.opening import open_backend
    from storeds.ops.showing.records import described
    from storeds.records.verdict_fields import without_verdicts

    with open_backend(url, layout=layout, **named_values(option)) as backend:
        fields = without_verdicts(backend.meta.fields)
        blobs = [name for kind in ("image", "bytes") for name, each in fields.items() if each.kind == kind]
        wanted = field or next(iter(blobs), "")
        if output is not None and wanted not in blobs:
            near = suggest(wanted, blobs, "fields of these kinds")
            raise ConfigError(f"{backend.url} has no picture or bytes {wanted!r}; {near}")
        (record,) = backend.get_many([_position(backend, key)])
    if isinstance(record, RecordError):
        raise record
    if output is None:
        print_json(described(record, fields))
    elif output == "-":
        sys.stdout.buffer.write(record[wanted])
    else:
        try:
            Path(output).write_bytes(record[wanted])
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


def _brief(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"


@app.command()
@command
def show(
    source: Annotated[str, typer.Argument(metavar="URL", help="The store: a URL or a file; or a training config.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="A .html page, or a .png picture.")] = Path(
        "page.html"
    ),
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="At most so many records.")] = 200,
    where: Where = None,
    keys_file: Annotated[Path | None, typer.Option(help="Only records whose key is a line of this file.")] = None,
    worst: Annotated[bool, typer.Option("--worst", help="Damaged records first, then unusual numbers.")] = False,
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
