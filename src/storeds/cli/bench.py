"""The command bench: how fast a store is and its bottleneck, as a table, as JSON or as bar charts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

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
    complete_decoder,
    complete_reader,
    parse_option,
    print_json,
    print_table,
    progress,
    say,
)
from storeds.errors import ConfigError
from storeds.ops.benchmarking import BenchPlot, BenchReport, Bottleneck, Measurement

__all__ = ["bench"]

_SHOWN = 0.05  # of the time; smaller parts are not printed


@app.command()
@command
def bench(
    url: StoreArgument,
    config: Annotated[
        Path | None, typer.Option(help="A training config whose [dataset] table applies to this store.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="A split of the config.")] = None,
    reader: Annotated[
        str | None,
        typer.Option(help="image, sample, array, video or a registered reader.", autocompletion=complete_reader),
    ] = None,
    decode: Annotated[
        str | None,
        typer.Option(help="pil, tensor, fast, bytes or a registered decoder.", autocompletion=complete_decoder),
    ] = None,
    workers: Annotated[
        str | None, typer.Option(help="Numbers of workers, as in 0,2,8; by default 0, 1, 2, 4, … up to the CPUs.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="64 by default, or that of the config.")] = None,
    seconds: Annotated[float, typer.Option(help="Duration of each measurement.")] = 3.0,
    cold: Annotated[
        bool,
        typer.Option(
            "--cold/--no-cold", help="Also measure a first epoch, with the files dropped from the page cache."
        ),
    ] = True,
    plot: Annotated[Path | None, typer.Option(help="Draw the results into this .png file.")] = None,
    layout: Layout = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Measure how fast a store is (raw, decoded and as batches, cold and warm), and find its bottleneck."""
    drawing = None if plot is None else BenchPlot(plot)
    with progress("bench", quiet=as_json, rates=False) as hook:
        report = ops.bench(
            url,
            config=config,
            split=split,
            reader=reader,
            decode=decode,
            workers=_numbers(workers),
            batch_size=batch_size,
            seconds=seconds,
            cold=cold,
            layout=layout,
            options=dict(map(parse_option, option or [])),
            progress=hook,
        )
    if drawing is not None:
        drawing.draw(report)
    if as_json:
        print_json(report.to_json())
        return
    _show(report)
    if drawing is not None:
        say(f"wrote {drawing.path}")


def _numbers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--workers {text!r} must be numbers separated by commas, as in 0,2,8") from None


def _show(report: BenchReport) -> None:
    columns = {"stage": "left", "workers": "right", "cold /s": "right", "warm /s": "right", "warm MiB/s": "right"}
    print_table({**columns, "start s": "right", "where the time goes": "left"}, _rows(report))
    OUT.print()
    say(
        f"{report.url}: {counted(report.count, 'sample')}, batches of {report.batch_size}, {report.seconds:g} s per measurement"
    )
    machine = report.machine
    disk = f", {machine['file_system']}" if "file_system" in machine else ""
    say(f"on {machine['cpu']}, {machine['cpus']} CPUs, load {machine['load_average']}{disk}")
    for note in report.notes:
        say(f"note: {note}")
    say(f"bottleneck: {_named(report.bottleneck)}")
    if report.cold_bottleneck is not None:
        say(f"bottleneck of a first epoch: {_named(report.cold_bottleneck)}")
    for advice in report.advice:
        say(f"advice: {advice}")


def _named(found: Bottleneck | None) -> str:
    if found is None:
        return "unknown, because no sample was good"
    count = counted(found.workers, "worker") if found.workers else "no workers"
    return f"{found.part}, {found.share:.0%} of the time with {count}"


def _rows(report: BenchReport) -> Iterator[tuple[str, ...]]:
    stages = dict.fromkeys(m.stage for m in report.measurements)
    workers = dict.fromkeys(m.workers for m in report.measurements)
    for stage in stages:
        for count in workers:
            warm, cold = report.find(stage, count), report.find(stage, count, "cold")
            if warm is not None:
                rates = _rate(cold), _rate(warm), f"{warm.mib_rate:,.1f}"
                yield stage, str(count), *rates, f"{warm.start_seconds:.2f}", _spent(warm)


def _rate(measured: Any) -> str:
    if measured is None:
        return "–"
    return f"{measured.rate:,.0f}" if measured.rate >= 10 else f"{measured.rate:.2g}"


def _spent(measured: Measurement) -> str:
    shares = sorted(measured.shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{part} {share:.0%}" for part, share in shares if share >= _SHOWN)
