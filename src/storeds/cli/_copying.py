"""The commands that write a store: pack, convert, repair."""

from __future__ import annotations

from typing import Annotated, Any, cast, get_args

import typer

from storeds import ops
from storeds._suggest import suggest
from storeds._url import redact
from storeds.cli._frame import (
    ERR,
    OUT,
    AsJson,
    CommitEvery,
    Index,
    Layout,
    Options,
    Overwrite,
    Resume,
    app,
    command,
    parse_option,
    print_json,
    print_table,
    progress,
)
from storeds.errors import ConfigError
from storeds.ops.finding_fields import FindingFields, Tally
from storeds.ops.pack import OnBad
from storeds.ops.progress import Progress
from storeds.ops.sources import Problem
from storeds.stores import open_backend

__all__ = ["convert", "pack", "repair"]


@app.command()
@command
def pack(
    source: Annotated[str, typer.Argument(help="A folder, a .csv, .jsonl, .json or .tar file, or a store.")],
    url: Annotated[str, typer.Argument(help="Where the store goes: lmdb://…, hdf5://…, mongodb://…")],
    kind: Annotated[str | None, typer.Option(help="What the source is, where that cannot be told by looking.")] = None,
    on_bad: Annotated[str, typer.Option(help="What bad items do: raise, skip or keep.")] = "raise",
    split: Annotated[str | None, typer.Option(help="Adds a field split by hash of the key: train=0.9,val=0.1")] = None,
    max_side: Annotated[int | None, typer.Option(help="Scale larger images down to this many pixels.")] = None,
    quality: Annotated[int | None, typer.Option(help="Encode every image anew as JPEG of this quality.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Triage every image; keep what was found in fields finding and recovered.")
    ] = False,
    workers: Annotated[int | None, typer.Option(help="Processes that read, check and encode.")] = None,
    root: Annotated[str | None, typer.Option(help="Where a manifest's paths begin; its own folder by default.")] = None,
    path_column: Annotated[str | None, typer.Option(help="The manifest's column of paths.")] = None,
    label_column: Annotated[str | None, typer.Option(help="The manifest's column of labels.")] = None,
    delimiter: Annotated[str | None, typer.Option(help="The CSV's delimiter; found out by default.")] = None,
    encoding: Annotated[str | None, typer.Option(help="The manifest's text encoding; UTF-8 by default.")] = None,
    fps: Annotated[str | None, typer.Option(help="Frames a second that are taken of films; all by default.")] = None,
    labels: Annotated[
        bool | None, typer.Option("--labels/--no-labels", help="Whether sub-folders of videos are classes.")
    ] = None,
    allow_outside: Annotated[bool, typer.Option("--allow-outside", help="Take paths that leave the root.")] = False,
    allow_empty: Annotated[bool, typer.Option("--allow-empty", help="Keep classes whose folder is empty.")] = False,
    overwrite: Overwrite = False,
    resume: Resume = False,
    commit_every: CommitEvery = 1000,
    index: Index = None,
    as_json: AsJson = False,
) -> None:
    """Pack images, or another store, into a store."""
    options = {
        "root": root,
        "path_column": path_column,
        "label_column": label_column,
        "delimiter": delimiter,
        "encoding": encoding,
        "fps": fps,
        "labels": labels,
        "allow_outside": allow_outside or None,
        "allow_empty": allow_empty or None,
    }
    problems: list[Problem] = []
    damaged = 0
    with progress("pack", quiet=as_json) as hook:

        def follow(step: Progress) -> None:
            nonlocal damaged
            damaged = step.odd
            if hook is not None:
                hook(step)

        meta = ops.pack(
            source,
            url,
            kind=kind,
            on_bad=_on_bad(on_bad),
            split=_shares(split),
            max_side=max_side,
            quality=quality,
            check=check,
            workers=workers,
            overwrite=overwrite,
            resume=resume,
            commit_every=commit_every,
            index=index or (),
            progress=follow,
            on_problem=problems.append,
            **{name: value for name, value in options.items() if value is not None},
        )
    if not as_json:
        for problem in problems:
            ERR.print(f"{'kept' if on_bad == 'keep' else 'left out'}: {problem}")
        if damaged and not check:
            ERR.print(f"damaged JPEGs, stored as they are: {damaged:,}; storeds verify says which")
    kinds = _kinds(url) if check else {}
    _published(
        url,
        meta,
        as_json=as_json,
        problems=[vars(problem) for problem in problems],
        damaged=damaged,
        **({"findings": kinds} if check else {}),
    )
    if check and not as_json:
        print_table({"finding": "left", "images": "right"}, ((kind, f"{count:,}") for kind, count in kinds.items()))


def _kinds(url: str) -> dict[str, int]:
    with open_backend(url) as backend:
        return Tally.of(backend, FindingFields(backend.meta.fields, backend.url)).kinds


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
@command
def convert(
    source: Annotated[str, typer.Argument(help="The store to copy.")],
    url: Annotated[str, typer.Argument(help="Where the copy goes.")],
    overwrite: Overwrite = False,
    resume: Resume = False,
    commit_every: CommitEvery = 1000,
    index: Index = None,
    layout: Layout = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Copy a store, native or foreign, to another engine; a native one's id stays the same."""
    options = dict(map(parse_option, option or []))
    with progress("convert", quiet=as_json) as hook:
        meta = ops.convert(
            source,
            url,
            overwrite=overwrite,
            resume=resume,
            commit_every=commit_every,
            index=index or (),
            layout=layout,
            options=options,
            progress=hook,
        )
    _published(url, meta, as_json=as_json)


@app.command()
@command
def repair(
    source: Annotated[str, typer.Argument(help="The store to copy; it is only read.")],
    url: Annotated[str, typer.Argument(help="Where the copy goes.")],
    overwrite: Overwrite = False,
    resume: Resume = False,
    commit_every: CommitEvery = 1000,
    layout: Layout = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Copy a store with every damaged JPEG mended; exit code 1 if some are beyond repair."""
    options = dict(map(parse_option, option or []))
    with progress("repair", quiet=as_json) as hook:
        report = ops.repair(
            source,
            url,
            overwrite=overwrite,
            resume=resume,
            commit_every=commit_every,
            layout=layout,
            options=options,
            progress=hook,
        )
    if as_json:
        print_json(report.to_json())
    else:
        rows = (
            (kind, f"{count:,}", f"{report.repaired_of(kind):,}", f"{report.beyond.get(kind, 0):,}")
            for kind, count in report.kinds.items()
        )
        print_table({"finding": "left", "images": "right", "repaired": "right", "beyond repair": "right"}, rows)
        _published(url, report, as_json=False)
    if not report.ok:
        raise typer.Exit(1)


def _published(url: str, meta: Any, *, as_json: bool, **more: Any) -> None:
    if as_json:
        print_json({"url": redact(url), "count": meta.count, "id": meta.id, "build": meta.build, **more})
    else:
        OUT.print(f"{redact(url)}: {meta.count} records, id {meta.id}")
