"""The command ``storeds``: pack, convert, info, verify, backends, config schema, demo.

Exit codes: 0 all is well; 1 `verify` or `demo` found something; 2 wrong usage or config; 3 a store or source is
missing, in the way or damaged; 4 an engine is unavailable; 130 interrupted,
143 terminated.
"""

from __future__ import annotations

import functools
import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, get_args

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from storeds import __version__, ops, registry
from storeds._suggest import suggest
from storeds._url import redact
from storeds.errors import ConfigError, MissingDependencyError, StoredsError, UnavailableError
from storeds.ops.pack import OnBad
from storeds.ops.progress import Progress, ProgressHook
from storeds.ops.sources import Problem

__all__ = ["app", "main"]

app = typer.Typer(no_args_is_help=True, add_completion=False, help="One dataset over HDF5, LMDB and MongoDB.")
config_app = typer.Typer(no_args_is_help=True, help="About config files.")
app.add_typer(config_app, name="config")

_OUT, _ERR = Console(soft_wrap=True), Console(stderr=True, soft_wrap=True)
F = TypeVar("F", bound=Callable[..., Any])

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace a store that exists, and what an interrupted writer left.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from what an interrupted writer left.")]
CommitEvery = Annotated[int, typer.Option("--commit-every", help="Records per durable batch.")]


def main() -> None:
    """Run the command line."""
    # As Ctrl-C does, so that a writer keeps what is durable.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    app(prog_name="storeds")


def _exit_code(error: StoredsError) -> int:
    if isinstance(error, (ConfigError, MissingDependencyError)):
        return 2
    return 4 if isinstance(error, UnavailableError) else 3


def _command(function: F) -> F:
    """Turn our errors into a message and an exit code."""

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> None:
        try:
            function(*args, **options)
        except StoredsError as error:
            if options.get("as_json"):
                _print_json({"error": {"type": type(error).__name__, "message": redact(str(error))}})
            else:
                _ERR.print(f"[bold red]error:[/] {type(error).__name__}: ", end="")
                _ERR.print(redact(str(error)), markup=False, highlight=False)
            raise typer.Exit(_exit_code(error)) from None
        except KeyboardInterrupt:
            _ERR.print("interrupted; what is durable stays, --resume goes on from there")
            raise typer.Exit(130) from None

    return run  # type: ignore[return-value]  # same signature, by wraps


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")


@contextmanager
def _progress(what: str, *, quiet: bool) -> Iterator[ProgressHook | None]:
    if quiet:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=_ERR, transient=True) as bar:
        task = bar.add_task(what, total=None, rate="")

        def show(state: Progress) -> None:
            seconds = max(bar.tasks[0].elapsed or 0.0, 1e-9)
            rate = f"{state.done / seconds:,.0f}/s {state.bytes / seconds / 1e6:,.1f} MB/s"
            rate += f" {state.bad} bad" if state.bad else ""
            rate += f" {state.odd} odd" if state.odd else ""
            bar.update(task, completed=state.done, total=state.total, rate=rate)

        yield show


@app.command()
@_command
def pack(
    source: Annotated[str, typer.Argument(help="A folder, a .csv, .jsonl, .json or .tar file, or a store.")],
    url: Annotated[str, typer.Argument(help="Where the store goes: lmdb://…, hdf5://…, mongodb://…")],
    kind: Annotated[str | None, typer.Option(help="What the source is, where that cannot be told by looking.")] = None,
    on_bad: Annotated[str, typer.Option(help="What bad items do: raise, skip or keep.")] = "raise",
    split: Annotated[str | None, typer.Option(help="Adds a field split by hash of the key: train=0.9,val=0.1")] = None,
    max_side: Annotated[int | None, typer.Option(help="Scale larger images down to this many pixels.")] = None,
    quality: Annotated[int | None, typer.Option(help="Encode every image anew as JPEG of this quality.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that read, check and encode.")] = None,
    root: Annotated[str | None, typer.Option(help="Where a manifest's paths begin; its own folder by default.")] = None,
    path_column: Annotated[str | None, typer.Option(help="The manifest's column of paths.")] = None,
    label_column: Annotated[str | None, typer.Option(help="The manifest's column of labels.")] = None,
    delimiter: Annotated[str | None, typer.Option(help="The CSV's delimiter; found out by default.")] = None,
    encoding: Annotated[str | None, typer.Option(help="The manifest's text encoding; UTF-8 by default.")] = None,
    allow_outside: Annotated[bool, typer.Option("--allow-outside", help="Take paths that leave the root.")] = False,
    overwrite: Overwrite = False,
    resume: Resume = False,
    commit_every: CommitEvery = 1000,
    as_json: AsJson = False,
) -> None:
    """Pack images, or another store, into a store."""
    options = {
        "root": root,
        "path_column": path_column,
        "label_column": label_column,
        "delimiter": delimiter,
        "encoding": encoding,
        "allow_outside": allow_outside or None,
    }
    problems: list[Problem] = []
    with _progress("pack", quiet=as_json) as hook:
        meta = ops.pack(
            source,
            url,
            kind=kind,
            on_bad=_on_bad(on_bad),
            split=_shares(split),
            max_side=max_side,
            quality=quality,
            workers=workers,
            overwrite=overwrite,
            resume=resume,
            commit_every=commit_every,
            progress=hook,
            on_problem=problems.append,
            **{name: value for name, value in options.items() if value is not None},
        )
    if not as_json:
        for problem in problems:
            _ERR.print(f"{'kept' if on_bad == 'keep' else 'left out'}: {problem}", markup=False, highlight=False)
    _published(url, meta, as_json=as_json, problems=[vars(problem) for problem in problems])


def _on_bad(name: str) -> OnBad:
    if name not in get_args(OnBad):
        raise ConfigError(f"unknown --on-bad {name!r}; {suggest(name, get_args(OnBad), 'policies')}")
    return cast("OnBad", name)


def _shares(text: str | None) -> dict[str, float] | None:
    if text is None:
        return None
    try:
        return {name.strip(): float(share) for name, share in (part.split("=") for part in text.split(","))}
    except ValueError:
        raise ConfigError(f"--split {text!r} must read name=share,name=share, as in train=0.9,val=0.1") from None


@app.command()
@_command
def convert(
    source: Annotated[str, typer.Argument(help="The store to copy.")],
    url: Annotated[str, typer.Argument(help="Where the copy goes.")],
    overwrite: Overwrite = False,
    resume: Resume = False,
    commit_every: CommitEvery = 1000,
    as_json: AsJson = False,
) -> None:
    """Copy a store to another engine; its id stays the same."""
    with _progress("convert", quiet=as_json) as hook:
        meta = ops.convert(source, url, overwrite=overwrite, resume=resume, commit_every=commit_every, progress=hook)
    _published(url, meta, as_json=as_json)


def _published(url: str, meta: Any, *, as_json: bool, **more: Any) -> None:
    if as_json:
        _print_json({"url": redact(url), "count": meta.count, "id": meta.id, "build": meta.build, **more})
    else:
        _OUT.print(f"{redact(url)}: {meta.count} records, id {meta.id}", markup=False, highlight=False)


@app.command()
@_command
def info(url: Annotated[str, typer.Argument(help="The store.")], as_json: AsJson = False) -> None:
    """Say what is in a store, without reading blobs."""
    found = ops.info(url).to_json()
    if as_json:
        _print_json(found)
        return
    table = Table(show_header=False, box=None)
    fields = found.pop("fields")
    found["fields"] = ", ".join(f"{row['name']}: {_kind(row)}" for row in fields)
    found["attrs"] = json.dumps(found.pop("attrs"), ensure_ascii=False)
    found["handle"] = ", ".join(f"{name}={value}" for name, value in found.pop("handle").items())
    found["advice"] = "; ".join(found.pop("advice")) or "none: all is well"
    for name, value in found.items():
        if value is not None:
            text = f"{value:,}" if isinstance(value, int) else str(value)
            table.add_row(name, text if len(text) < 400 else f"{text[:400]} …")
    _OUT.print(table)


def _kind(row: dict[str, Any]) -> str:
    return f"{row['kind']} {row['dtype']} {row['shape']}" if row["kind"] == "array" else str(row["kind"])


@app.command()
@_command
def verify(url: Annotated[str, typer.Argument(help="The store.")], as_json: AsJson = False) -> None:
    """Check every record, image and column of a store; exit code 1 if something is wrong."""
    with _progress("verify", quiet=as_json) as hook:
        report = ops.verify(url, progress=hook)
    if as_json:
        _print_json(report.to_json())
    else:
        for finding in report.findings:
            key = f" ({finding.key})" if finding.key else ""
            where = "" if finding.position is None else f"record {finding.position}{key}: "
            _OUT.print(f"{where}{finding.kind}: {finding.message}", markup=False, highlight=False)
        verdict = "all is well" if report.ok else f"{len(report.findings)} findings"
        _OUT.print(
            f"{report.url}: {report.count} records, {report.images} images decoded: {verdict}",
            markup=False,
            highlight=False,
        )
    if not report.ok:
        raise typer.Exit(1)


@app.command()
@_command
def backends(as_json: AsJson = False) -> None:
    """List every plug-in: where it comes from, what it needs, whether it loads."""
    known = (registry.BACKENDS, registry.LAYOUTS, registry.READERS, registry.DECODERS)
    rows = [{"sort": kind.what, **row} for kind in known for row in kind.describe()]
    if as_json:
        _print_json({"plugins": rows})
        return
    table = Table(*("sort", "name", "origin", "needs", "state"))
    for row in rows:
        table.add_row(*row.values())
    _OUT.print(table)


@config_app.command("schema")
@_command
def schema(as_json: AsJson = False) -> None:
    """Print the JSON Schema of a config."""
    from storeds.config import config_schema

    sys.stdout.write(json.dumps(config_schema(), indent=None if as_json else 2) + "\n")


@app.command()
@_command
def demo(
    work: Annotated[
        Path | None, typer.Option(help="Where stores and images go; a temporary folder by default.")
    ] = None,
    mongodb: Annotated[
        str | None, typer.Option(help="A MongoDB server's URL; by default one is started for the demo.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Pack real images, train from a config, and show the same samples from all three engines."""
    from storeds.demo import run_demo

    if not run_demo(work, mongodb, as_json=as_json):
        raise typer.Exit(1)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """One dataset over HDF5, LMDB and MongoDB."""
    if version:
        _OUT.print(f"storeds {__version__}", highlight=False)
        raise typer.Exit
