"""The commands that read: info, verify, bench, backends, layouts, config schema, demo."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from storeds import __version__, ops, registry
from storeds._utils.text import byte_size, counted, some
from storeds.cli.app import (
    OUT,
    AsJson,
    Layout,
    Options,
    StoreArgument,
    app,
    command,
    config_app,
    named_values,
    print_json,
    print_table,
    progress,
    say,
    say_error,
)
from storeds.errors import ConfigError
from storeds.redaction import redact_message

if TYPE_CHECKING:
    from storeds.ops.benchmarking import BenchReport
    from storeds.ops.verifying import Report
    from storeds.protocols import Field

__all__ = ["backends", "bench", "demo", "info", "root", "schema", "verify"]

_MAX_NAMED = 30  # classes
_MAX_NOTES = 20  # lines; there may be a note for every record


@app.command()
@command
def info(
    url: StoreArgument,
    layout: Layout = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Describe a store without reading blobs."""
    found = ops.info(url, layout=layout, options=named_values(option)).to_json()
    if as_json:
        print_json(found)
        return
    from storeds.ops.common import brief_counts
    from storeds.protocols import Field
    from storeds.records.roles import role_text

    fields = {row.pop("name"): Field(**row) for row in found.pop("fields")}
    found["attrs"] = json.dumps(found.pop("attrs"), ensure_ascii=False)
    found["handle"] = ", ".join(f"{name}={value}" for name, value in found.pop("handle").items())
    for name in ("classes", "splits"):
        found[name] = None if found[name] is None else _brief_counts(found[name])
    found["fast_crops"] = _fast_crops(found["fast_crops"], found["pictures"])
    found["pictures"] = None if found["pictures"] is None else brief_counts(found["pictures"])
    found["bytes"] = None if found["bytes"] is None else byte_size(found["bytes"])
    unread = found.pop("unread")
    found["advice"] = "; ".join(found.pop("advice")) or "none"
    rows = [(name, _brief(value)) for name, value in found.items() if value is not None]
    widths = max(map(len, fields)), max(len(_kind(field)) for field in fields.values())
    lines = [f"{name:{widths[0]}}  {_kind(field):{widths[1]}}  {role_text(field)}" for name, field in fields.items()]
    rows += [*_listed("fields", lines), *_listed("unread", unread)]
    print_table({"what": "left", "value": "left"}, rows, head=False)


def _listed(what: str, lines: list[str]) -> list[tuple[str, str]]:
    """Return rows of a table with the heading in the first of them."""
    return [("" if number else what, line) for number, line in enumerate(lines)]


def _brief_counts(counts: dict[str, int]) -> str:
    named = [f"{name} {count:,}" for name, count in counts.items()]
    return f"{len(named):,}: " + some(named, _MAX_NAMED)


def _fast_crops(ready: int | None, pictures: dict[str, int] | None) -> str | None:
    if ready is None:
        return None
    return f"{ready:,} of {counted(sum((pictures or {}).values()), 'picture')} ready"


def _brief(value: Any) -> str:
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return text if len(text) < 400 else f"{text[:400]} …"


def _kind(field: Field) -> str:
    if field.kind != "array":
        return field.kind
    return f"array {field.dtype} [{', '.join('*' if size is None else str(size) for size in field.shape or ())}]"


@app.command()
@command
def verify(
    url: StoreArgument,
    contact_sheet: Annotated[
        Path | None,
        typer.Option(help="Show the damaged records, repaired as far as possible, in this .png or .html file."),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that check; one per CPU by default.")] = None,
    layout: Layout = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Check every record, image and column of a store. The exit code is 1 if something is wrong."""
    from storeds.ops.showing import check_target

    if contact_sheet is not None:
        check_target(contact_sheet)
    options = named_values(option)
    with progress("verify", quiet=as_json) as hook:
        report = ops.verify(url, workers=workers, layout=layout, options=options, progress=hook)
    if as_json:
        print_json(report.to_json())
    else:
        _show_report(report)
    if contact_sheet is not None:
        try:
            page = ops.show(url, report.worst(), layout=layout, options=options)
            page.save(contact_sheet)
        except Exception as error:  # the report above took much longer than a sheet, and scripts need its exit code
            reason = f"the contact sheet {contact_sheet} was not drawn: {redact_message(str(error))}"
            say_error("error: ", reason, "bold red")
            raise typer.Exit(2 if report.ok else 1) from None
        else:
            if not as_json:
                say(f"{contact_sheet}: {counted(len(page.records), 'damaged record')}")
    if not report.ok:
        raise typer.Exit(1)


def _show_report(report: Report) -> None:
    if report.kinds:
        columns = {"record": "right", "key": "left", "finding": "left", "severity": "left", "what": "left"}
        print_table(columns, _report_rows(report))
        hidden = len(report.notes) - _MAX_NOTES
        if hidden > 0:
            say(f"… and {hidden:,} more harmless notes; --json lists them")
        OUT.print()
        print_table({"finding": "left", "count": "right"}, ((kind, f"{n:,}") for kind, n in report.kinds.items()))
        OUT.print()
    verdict = "no findings" if report.ok else counted(len(report.findings), "finding")
    verdict += f", {counted(len(report.notes), 'harmless note')}" if report.notes else ""
    images = f"{counted(report.images, 'image that decodes', 'images that decode')} ({report.examined:,} examined)"
    say(f"{report.url}: {counted(report.count, 'record')}, {images}: {verdict}")


def _report_rows(report: Report) -> Iterator[tuple[str, ...]]:
    for finding in (*report.findings, *report.notes[:_MAX_NOTES]):
        at = "" if finding.position is None else str(finding.position)
        yield at, finding.key or "", finding.kind, finding.severity, finding.message


@app.command()
@command
def bench(
    url: Annotated[str | None, typer.Argument(help="The store: a URL or a file; by default that of --config.")] = None,
    config: Annotated[Path | None, typer.Option(help="A training config, whose dataset and loader apply.")] = None,
    split: Annotated[str | None, typer.Option(help="A split of the config.")] = None,
    reader: Annotated[str | None, typer.Option(help="image, sample, array, video or a registered reader.")] = None,
    decode: Annotated[str | None, typer.Option(help="pil, tensor, fast, bytes or a registered decoder.")] = None,
    workers: Annotated[
        str | None, typer.Option(help="Numbers of workers, as in 0,2,8; by default 0, 1, 2, 4, … up to the CPUs.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="64 by default, or that of the config.")] = None,
    seconds: Annotated[float, typer.Option(help="Duration of each measurement.")] = 3.0,
    layout: Layout = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Measure how fast a store gives batches, and which stage takes most of the time."""
    with progress("bench", quiet=as_json) as hook:
        report = ops.bench(
            url,
            config=config,
            split=split,
            reader=reader,
            decode=decode,
            workers=None if workers is None else [_number(part) for part in workers.split(",")],
            batch_size=batch_size,
            seconds=seconds,
            layout=layout,
            options=named_values(option),
            progress=hook,
        )
    if as_json:
        print_json(report.to_json())
    else:
        _show_bench(report)


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"--workers takes numbers separated by commas, as in 0,2,8, got {text!r}") from None


def _show_bench(report: BenchReport) -> None:
    from storeds.datasets.batch import STAGES

    stages = (*STAGES, "waiting")
    rows = []
    for measured in report.measurements:
        spent = (f"{1e6 * measured.stages[stage]:,.0f}" for stage in stages)
        rows.append((f"{measured.workers}", f"{measured.rate:,.0f}", f"{measured.start_seconds:.2f}", *spent))
    headings = ("workers", "samples/s", "start s", *(f"{stage} µs" for stage in stages))
    print_table(dict.fromkeys(headings, "right"), rows)
    OUT.print()
    say(f"{report.url}: {counted(report.count, 'sample')}, batches of {report.batch_size}")
    for advice in report.advice:
        say(f"advice: {advice}")


@app.command()
@command
def backends(as_json: AsJson = False) -> None:
    """List all plug-ins: their origin, their requirements, and whether they load."""
    known = (registry.BACKENDS, registry.LAYOUTS, registry.READERS, registry.DECODERS, registry.SOURCES)
    rows = [{"sort": kind.what, **row} for kind in known for row in kind.describe()]
    if as_json:
        print_json({"plugins": rows})
        return
    columns = dict.fromkeys(("sort", "name", "origin", "needs", "state"), "left")
    print_table(columns, (tuple(row.values()) for row in rows))


@app.command()
@command
def layouts(as_json: AsJson = False) -> None:
    """List the layouts of stores that other tools wrote: what a record is, and its pattern."""
    rows: list[tuple[str, str, str, Mapping[str, str]]] = []
    for name in registry.LAYOUTS.names():
        engine, _, layout = name.partition("/")
        if not registry.LAYOUTS.is_built_in(name):
            rows.append((engine, layout, "(a plug-in)", {}))
        elif not engine.endswith("+srv"):
            preset = registry.import_object(f"storeds.layouts.{engine}.presets:PRESETS")[layout]
            rows.append((engine, layout, preset.about, preset.columns))
    keys = ("engine", "layout", "record", "columns")
    if as_json:
        print_json({"layouts": [dict(zip(keys, row, strict=True)) for row in rows]})
        return
    shown = ((*row[:3], json.dumps(dict(row[3]), ensure_ascii=False)) for row in rows)
    print_table(dict.fromkeys(keys, "left"), shown)


@config_app.command("schema")
@command
def schema(as_json: AsJson = False) -> None:
    """Print the JSON Schema of a config."""
    from storeds.config import config_schema

    sys.stdout.write(json.dumps(config_schema(), indent=None if as_json else 2) + "\n")


@app.command()
@command
def demo(
    mongodb: Annotated[
        str | None, typer.Option(help="The URL of a MongoDB server; by default the demo starts one.")
    ] = None,
) -> None:
    """Pack real images, train from a config, and read the same samples from all three engines."""
    from storeds.cli.demo import run_demo

    if not run_demo(mongodb):
        raise typer.Exit(1)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """One dataset over HDF5, LMDB and MongoDB."""
    if version:
        OUT.print(f"storeds {__version__}")
        raise typer.Exit
