"""The command bench: how fast a store is, and what holds it back, as a table, as JSON, as bars."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from storeds import ops
from storeds._utils.text import counted
from storeds.cli.app import (
    ERR,
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
    say,
)
from storeds.cli.complete import complete_decoder, complete_reader
from storeds.errors import ConfigError
from storeds.ops.benchmarking import BenchPlot, BenchReport, Bottleneck, Measurement
from storeds.ops.progress import Progress, ProgressHook

__all__ = ["bench"]

_SHOWN = 0.05  # of the time: what takes less is not worth a word


@app.command()
@command
def bench(
    url: StoreArgument,
    config: Annotated[
        Path | None, typer.Option(help="A training config: measure what its dataset table says, of this store.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="The config's split.")] = None,
    reader: Annotated[
        str | None, typer.Option(help="image, array, video or a registered one.", autocompletion=complete_reader)
    ] = None,
    decode: Annotated[
        str | None,
        typer.Option(help="pil, tensor, fast, simplejpeg, bytes or a registered one.", autocompletion=complete_decoder),
    ] = None,
    workers: Annotated[
        str | None, typer.Option(help="Numbers of workers: 0,2,8; by default 0, 1, 2, 4 … up to the CPUs.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="64, or what the config says.")] = None,
    seconds: Annotated[float, typer.Option(help="For each figure.")] = 3.0,
    cold: Annotated[
        bool,
        typer.Option("--cold/--no-cold", help="Drop the files from the page cache, and measure a first epoch too."),
    ] = True,
    plot: Annotated[Path | None, typer.Option(help="Draw the figures into this .png file.")] = None,
    layout: Layout = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Measure a store: raw, decoded and as batches, cold and warm, by number of workers; and name the bottleneck."""
    drawing = None if plot is None else BenchPlot(plot)
    with _progress(quiet=as_json) as hook:
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
        say(f"{drawing.path}: drawn")


def _numbers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--workers {text!r} must be numbers with commas between, as in 0,2,8") from None


@contextmanager
def _progress(*, quiet: bool) -> Iterator[ProgressHook | None]:
    """Show on stderr how many figures are measured."""
    if quiet:
        yield None
        return
    columns = (TextColumn("bench"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    # Drawn by this thread alone: one that draws by itself may hold a lock while workers are forked.
    with Bar(*columns, console=ERR, transient=True, auto_refresh=False, disable=not ERR.is_terminal) as bar:
        task = bar.add_task("bench", total=None)
        drawn = 0.0

        def show(state: Progress) -> None:
            nonlocal drawn
            bar.update(task, completed=state.done, total=state.total)
            if bar.get_time() - drawn > 0.1:
                drawn = bar.get_time()
                bar.refresh()

        yield show


def _show(report: BenchReport) -> None:
    columns = {"stage": "left", "workers": "right", "cold /s": "right", "warm /s": "right", "warm MiB/s": "right"}
    print_table({**columns, "start s": "right", "where the time goes": "left"}, _rows(report))
    OUT.print()
    say(
        f"{report.url}: {counted(report.count, 'sample')}, batches of {report.batch_size}, {report.seconds:g} s a figure"
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
        return "none to tell, since no sample was good"
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
