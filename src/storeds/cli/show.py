"""The commands that show something: info, backends, config schema, demo."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from storeds import __version__, ops, registry
from storeds._utils.text import byte_size, some
from storeds.cli.app import (
    OUT,
    AsJson,
    Layout,
    Options,
    StoreArgument,
    app,
    command,
    config_app,
    parse_option,
    print_json,
    print_table,
)
from storeds.ops.verdict_counts import brief

__all__ = ["backends", "demo", "info", "root", "schema"]

_MOST_NAMED = 30  # classes


@app.command()
@command
def info(
    url: StoreArgument,
    layout: Layout = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Say what is in a store, without reading blobs."""
    found = ops.info(url, layout=layout, options=dict(map(parse_option, option or []))).to_json()
    if as_json:
        print_json(found)
        return
    fields = found.pop("fields")
    found["fields"] = ", ".join(f"{row['name']}: {_kind(row)}" for row in fields)
    found["attrs"] = json.dumps(found.pop("attrs"), ensure_ascii=False)
    found["handle"] = ", ".join(f"{name}={value}" for name, value in found.pop("handle").items())
    for name in ("classes", "splits"):
        found[name] = None if found[name] is None else _brief_counts(found[name])
    found["pictures"] = None if found["pictures"] is None else brief(found["pictures"])
    found["bytes"] = None if found["bytes"] is None else byte_size(found["bytes"])
    unread = found.pop("unread")
    found["advice"] = "; ".join(found.pop("advice")) or ("none" if unread else "none: all is well")
    rows = [(name, _brief(value)) for name, value in found.items() if value is not None]
    rows += [("" if number else "unread", text) for number, text in enumerate(unread)]
    print_table({"what": "left", "value": "left"}, rows, head=False)


def _brief_counts(counts: dict[str, int]) -> str:
    named = [f"{name} {count:,}" for name, count in counts.items()]
    return f"{len(named):,}: " + some(named, _MOST_NAMED)


def _brief(value: Any) -> str:
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return text if len(text) < 400 else f"{text[:400]} …"


def _kind(row: dict[str, Any]) -> str:
    return f"{row['kind']} {row['dtype']} {row['shape']}" if row["kind"] == "array" else str(row["kind"])


@app.command()
@command
def backends(as_json: AsJson = False) -> None:
    """List every plug-in: where it comes from, what it needs, whether it loads."""
    known = (registry.BACKENDS, registry.LAYOUTS, registry.READERS, registry.DECODERS)
    rows = [{"sort": kind.what, **row} for kind in known for row in kind.describe()]
    if as_json:
        print_json({"plugins": rows})
        return
    columns = dict.fromkeys(("sort", "name", "origin", "needs", "state"), "left")
    print_table(columns, (tuple(row.values()) for row in rows))


@config_app.command("schema")
@command
def schema(as_json: AsJson = False) -> None:
    """Print the JSON Schema of a config."""
    from storeds.config import config_schema

    sys.stdout.write(json.dumps(config_schema(), indent=None if as_json else 2) + "\n")


@app.command()
@command
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
    from storeds.cli.demo import run_demo

    if not run_demo(work, mongodb, as_json=as_json):
        raise typer.Exit(1)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """One dataset over HDF5, LMDB and MongoDB."""
    if version:
        OUT.print(f"storeds {__version__}")
        raise typer.Exit
