"""The commands that make a store or a folder: pack, convert, repair, export."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from storeds import ops
from storeds._utils.text import byte_size, counted
from storeds.cli.app import (
    MAKE,
    AsJson,
    CommitEvery,
    Layout,
    Options,
    Overwrite,
    Resume,
    StoreArgument,
    Target,
    command,
    named_values,
    print_json,
    print_table,
    progress,
    say,
    say_error,
)
from storeds.errors import ConfigError, StoreNotFoundError
from storeds.ops import OnBad, OnBadRecord, SplitBy
from storeds.redaction import redact

if TYPE_CHECKING:
    from storeds.layouts.files.rows import Bad
    from storeds.ops.packing import Packed

__all__ = ["convert", "export", "pack", "repair"]

_SHOWN = 20  # lines

Check = Annotated[bool, typer.Option("--check/--no-check", help="Examine each picture, and store the verdict.")]
OnBadRecords = Annotated[OnBadRecord, typer.Option("--on-bad", help="Unreadable records: stop, or leave them out.")]
FastCrops = Annotated[bool, typer.Option("--fast-crops", help="Put restart markers into JPEGs, for crops; lossless.")]


@command(
    MAKE,
    "storeds pack photos/ train.lmdb",
    "storeds pack labels.csv hdf5://train.h5 --shares train=0.9,val=0.1",
    "storeds pack coco/annotations.json mongodb://localhost/data/train --on-bad skip",
    "storeds pack photos/ lmdb://data/train/ --ray auto",
)
def pack(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A folder, a file, or a store: `storeds formats` lists them.")
    ],
    url: Target,
    kind: Annotated[str | None, typer.Option(help="The kind of the source, if not detected.")] = None,
    on_bad: Annotated[
        OnBad, typer.Option(help="Bad items: publish nothing, or leave them out, or keep them.")
    ] = "raise",
    shares: Annotated[str | None, typer.Option(help="Add a field split: train=0.9,val=0.1.")] = None,
    split_by: Annotated[SplitBy | None, typer.Option(help="Divide class by class, or by a hash of the key.")] = None,
    max_side: Annotated[int | None, typer.Option(help="Scale larger images down to this many pixels.")] = None,
    quality: Annotated[int | None, typer.Option(help="Encode images as JPEG of this quality.")] = None,
    check: Check = True,
    fast_crops: FastCrops = False,
    sizes: Annotated[bool, typer.Option("--sizes", help="Add fields width and height.")] = False,
    workers: Annotated[int | None, typer.Option(help="Threads; one per CPU by default.")] = None,
    label: Annotated[bool | None, typer.Option("--label/--no-label", help="Whether records get a label.")] = None,
    classes: Annotated[str | None, typer.Option(help="The class names: a,b,c, or a file of them.")] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", help="An option of the source, name=value: `storeds formats csv`.")
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(help="Write one part of a versioned store, such as 3/16; `storeds commit` publishes all."),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Pack in parts on a Ray cluster: auto (the one that runs), or its address."
        ),
    ] = None,
    overwrite: Overwrite = False,
    resume: Resume = False,
    commit_every: CommitEvery = 1000,
    as_json: AsJson = False,
) -> None:
    """Make a store of images, tables or annotations, or of another store."""
    options = named_values(option)
    if label is not None:
        options["label"] = label
    if classes is not None:
        options["classes"] = _classes(classes)
    pack_all: Callable[..., Packed] = ops.pack
    if ray is not None:
        from storeds.ray import pack as pack_with_ray

        pack_all = partial(pack_with_ray, address=ray)
    problems: list[Bad] = []
    with progress("pack", quiet=as_json) as hook:
        meta = pack_all(
            source,
            url,
            kind=kind,
            on_bad=on_bad,
            split=_shares(shares),
            split_by=split_by,
            max_side=max_side,
            quality=quality,
            check=check,
            fast_crops=fast_crops,
            sizes=sizes,
            workers=workers,
            part=part,
            overwrite=overwrite,
            resume=resume,
            commit_every=commit_every,
            progress=hook,
            on_problem=problems.append,
            **options,
        )
    if not as_json:
        _report(meta, problems)
    _published(
        url,
        meta,
        as_json=as_json,
        problems=[vars(problem) for problem in problems],
        damaged=meta.damaged,
        left_out=meta.left_out,
        columns=meta.columns,
        notes=meta.notes,
        findings=meta.findings,
        restarts=meta.restarts,
    )
    if not as_json:
        _say_what_became_of_pictures(meta.findings, meta.restarts)


def _say_what_became_of_pictures(findings: Mapping[str, int], restarts: Mapping[str, int]) -> None:
    from storeds.ops.verdicts import brief_counts, listed

    if findings:
        say(f"pictures: {brief_counts(findings)}")
    if restarts:
        say(f"restart markers: {listed(restarts)}")


def _report(packed: Packed, problems: list[Bad]) -> None:
    """Print on stderr how columns were interpreted, and which items are bad and why."""
    if packed.columns:
        say_error("columns: ", ", ".join(f"{name} → {field or 'left out'}" for name, field in packed.columns.items()))
        if not {"label", "labels"} & set(packed.fields):
            say_error("columns: ", "none is a label, so records have no labels")
    for problem in problems[:_SHOWN]:
        say_error("", f"{'kept' if problem.kept else 'left out'}: {problem}")
    if len(problems) > _SHOWN:
        say_error("", f"… and {len(problems) - _SHOWN:,} more; --json lists all of them")
    if packed.reasons:
        bad, items = sum(packed.reasons.values()), counted(packed.count + packed.left_out, "item")
        why = "; ".join(f"{counted(count, 'item')}: {brief}" for brief, count in packed.reasons.items())
        say_error("", f"{bad:,} of {items} bad, {packed.left_out:,} left out: {why}")


def _names(text: str) -> list[str]:
    """Return the names in ``a,b,c``; none in an empty text."""
    return [name.strip() for name in text.split(",")] if text.strip() else []


def _classes(text: str) -> str | list[str]:
    """Return class names, or the path of a file of them."""
    if os.path.isfile(text):
        return text
    if text.lower().endswith((".txt", ".json")):
        raise StoreNotFoundError(f"--classes {text}: no such file; pass a file of class names, or the names: a,b,c")
    return _names(text)


def _shares(text: str | None) -> dict[str, float] | None:
    if text is None:
        return None
    try:
        return {name.strip(): float(share) for name, share in (part.split("=") for part in text.split(","))}
    except ValueError:
        raise ConfigError(
            f"--shares {text!r} must have the form name=share,name=share, as in train=0.9,val=0.1"
        ) from None


@command(
    MAKE,
    "storeds convert train.lmdb train.h5",
    "storeds convert a.lmdb b.lmdb -o both.lmdb",
    "storeds convert train.lmdb repaired.lmdb --repair",
    finds=True,
)
def convert(
    stores: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE... [TARGET]", help="The store to copy and the new one; or several, and -o."),
    ],
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="TARGET", help="The new store, which joins all sources.")
    ] = None,
    overwrite: Overwrite = False,
    resume: Resume = False,
    commit_every: CommitEvery = 1000,
    on_bad: OnBadRecords = "raise",
    check: Check = True,
    fast_crops: FastCrops = False,
    repair: Annotated[bool, typer.Option("--repair", help="Repair every damaged JPEG.")] = False,
    role: Annotated[
        list[str] | None, typer.Option("--role", help="The role of a field: name=role, or name={…} as JSON.")
    ] = None,
    layout: Layout = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Copy a native or foreign store to another engine, or join several. A native one keeps its id unless the copy differs."""
    if output is None and len(stores) != 2:
        raise ConfigError(
            f"convert takes SOURCE TARGET, or sources and -o TARGET, and {counted(len(stores), 'store')} without -o"
            f"{' is' if len(stores) == 1 else ' are'} neither; name the new store with -o"
        )
    sources, url = (stores[:1], stores[1]) if output is None else (stores, output)
    source: str | list[str] = sources[0] if len(sources) == 1 else sources
    same: dict[str, Any] = {
        **{"overwrite": overwrite, "resume": resume, "commit_every": commit_every, "on_bad": on_bad},
        **{"layout": layout, "options": named_values(option)},
    }
    if repair:
        if role or fast_crops or not check:
            raise ConfigError(
                "--repair changes damaged JPEGs alone: convert the result for --role, --fast-crops or --no-check"
            )
        _repair(source, url, as_json=as_json, **same)
        return
    with progress("convert", quiet=as_json) as hook:
        meta = ops.convert(
            source, url, check=check, fast_crops=fast_crops, roles=named_values(role), progress=hook, **same
        )
    _published(url, meta, as_json=as_json, restarts=meta.restarts, left_out=meta.left_out)
    if not as_json:
        _say_left_out(meta.left_out)
        _say_what_became_of_pictures({}, meta.restarts)


@command(MAKE, "storeds export train.lmdb out/ --format coco")
def export(
    source: StoreArgument,
    path: Annotated[str, typer.Argument(metavar="TARGET", help="The new folder.")],
    format: Annotated[
        str, typer.Option("--format", help="What to write: coco, folder, yolo, or a format of a plug-in.")
    ],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a folder that an earlier export wrote.")
    ] = False,
    layout: Layout = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Write the pictures and annotations of a store as files, in a form that other programs read."""
    options = named_values(option)
    with progress("export", quiet=as_json) as hook:
        done = ops.export(
            source, path, format=format, overwrite=overwrite, layout=layout, options=options, progress=hook
        )
    if as_json:
        print_json(done.to_json())
    else:
        files = f"{counted(done.files, 'file')}, {byte_size(done.bytes)}"
        say(f"{done.path}: {counted(done.count, 'record')} as {done.format}, {files}")


@command(MAKE, "storeds repair train.lmdb repaired.lmdb", finds=True)
def repair(
    source: Annotated[str, typer.Argument(metavar="STORE", help="The store to copy; it is not changed.")],
    url: Target,
    overwrite: Overwrite = False,
    resume: Resume = False,
    commit_every: CommitEvery = 1000,
    on_bad: OnBadRecords = "raise",
    layout: Layout = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Copy a store with every damaged JPEG repaired: `convert --repair`. The exit code is 1 if some are beyond repair."""
    _repair(
        source,
        url,
        as_json=as_json,
        overwrite=overwrite,
        resume=resume,
        commit_every=commit_every,
        on_bad=on_bad,
        layout=layout,
        options=named_values(option),
    )


def _repair(source: str | list[str], url: str, *, as_json: bool, **how: Any) -> None:
    with progress("repair", quiet=as_json) as hook:
        report = ops.repair(source, url, progress=hook, **how)
    if as_json:
        print_json(report.to_json())
    else:
        rows = (
            (kind, f"{count:,}", f"{report.repaired_of(kind):,}", f"{report.beyond.get(kind, 0):,}")
            for kind, count in report.kinds.items()
        )
        print_table({"finding": "left", "images": "right", "repaired": "right", "beyond repair": "right"}, rows)
        _published(url, report, as_json=False)
        _say_left_out(report.left_out)
    if not report.ok:
        raise typer.Exit(1)


def _say_left_out(count: int) -> None:
    if count:
        say_error("", f"{counted(count, 'record')} left out")


def _published(url: str, meta: Any, *, as_json: bool, **more: Any) -> None:
    if as_json:
        print_json({"url": redact(url), "count": meta.count, "id": meta.id, "build": meta.build, **more})
    else:
        say(f"{redact(url)}: {counted(meta.count, 'record')}, id {meta.id}")
