"""The command verify: what is wrong with a store, as a table, as JSON, as a sheet of pictures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from storeds import ops
from storeds._utils.text import counted
from storeds.cli.app import (
    OUT,
    AsJson,
    Layout,
    Options,
    StoreArgument,
    app,
    command,
    parse_option,
    print_json,
    print_table,
    progress,
    say,
)
from storeds.ops.verifying import Report

__all__ = ["verify"]

_NOTES = 20  # lines; of trailing bytes there may be as many as records


@app.command()
@command
def verify(
    url: StoreArgument,
    deep: Annotated[
        bool, typer.Option("--deep", help="Examine every picture again; report where the verdict stored differs.")
    ] = False,
    contact_sheet: Annotated[
        Path | None, typer.Option(help="Draw the damaged pictures, as they decode once mended, into this .png file.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that check; one per CPU by default.")] = None,
    layout: Layout = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Check every record, image and column of a store; exit code 1 if something is wrong."""
    sheet = None if contact_sheet is None else ops.ContactSheet(contact_sheet)
    options = dict(map(parse_option, option or []))
    with progress("verify", quiet=as_json) as hook:
        report = ops.verify(url, deep=deep, workers=workers, layout=layout, options=options, progress=hook)
    drawn = None if sheet is None else sheet.draw(url, report.findings, layout=layout, options=options)
    if as_json:
        print_json(report.to_json())
    else:
        _show(report)
        if sheet is not None:
            say(f"{sheet.path}: {counted(drawn or 0, 'picture')}")
    if not report.ok:
        raise typer.Exit(1)


def _show(report: Report) -> None:
    if report.kinds:
        columns = {"record": "right", "key": "left", "finding": "left", "severity": "left", "what": "left"}
        print_table(columns, _rows(report))
        hidden = len(report.notes) - _NOTES
        if hidden > 0:
            say(f"… and {hidden:,} more that are harmless; --json lists them")
        OUT.print()
        print_table({"finding": "left", "count": "right"}, ((kind, f"{n:,}") for kind, n in report.kinds.items()))
        OUT.print()
    verdict = "all is well" if report.ok else counted(len(report.findings), "finding")
    verdict += f", {counted(len(report.notes), 'harmless note')}" if report.notes else ""
    images = f"{counted(report.images, 'image')} ({report.examined:,} examined)"
    say(f"{report.url}: {counted(report.count, 'record')}, {images}: {verdict}")


def _rows(report: Report) -> Iterator[tuple[str, ...]]:
    for finding in (*report.findings, *report.notes[:_NOTES]):
        at = "" if finding.position is None else str(finding.position)
        yield at, finding.key or "", finding.kind, finding.severity, finding.message
