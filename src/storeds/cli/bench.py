"""The command bench: how fast a store is and which stage takes most of the time, as a table or as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from storeds import ops
from storeds._utils.text import counted
from storeds.cli.app import (
    OUT,
    AsJson,
    Layout,
    Options,
    app,
    command,
    parse_option,
    print_json,
    print_table,
    progress,
    say,
)
from storeds.datasets.stages import STAGES
from storeds.errors import ConfigError

if TYPE_CHECKING:
    from storeds.ops.benchmarking import BenchReport

__all__ = ["bench"]


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
    with progress("bench", quiet=as_json, rates=False) as hook:
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
            options=dict(map(parse_option, option or [])),
            progress=hook,
        )
    if as_json:
        print_json(report.to_json())
    else:
        _show(report)


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"--workers takes numbers separated by commas, as in 0,2,8, got {text!r}") from None


def _show(report: BenchReport) -> None:
    stages = (*STAGES, "waiting")
    rows = []
    for measured in report.measurements:
        spent = (f"{1e6 * measured.stages[stage]:,.0f}" for stage in stages)
        rows.append((f"{measured.workers}", f"{measured.rate:,.0f}", f"{measured.start_seconds:.2f}", *spent))
    headings = ("workers", "samples/s", "start s", *(f"{stage} µs" for stage in stages))
    print_table(dict.fromkeys(headings, "right"), rows)
    OUT.print()
    say(f"{report.url}: {counted(report.count, 'sample')}, batches of {report.batch_size}")
    say(f"on {report.machine['cpu']}, {report.machine['cpus']} CPUs, load {report.machine['load_average']}")
    for advice in report.advice:
        say(f"advice: {advice}")
