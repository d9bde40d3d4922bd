"""The command about local copies: stage."""

from __future__ import annotations

from typing import Annotated

import typer

from storeds import ops
from storeds._utils.text import byte_size
from storeds.cli.app import TRAIN, AsJson, command, print_json, print_table, progress, say
from storeds.errors import ConfigError

__all__ = ["stage"]


@command(
    TRAIN, "storeds stage s3://bucket/train/ --path /local/cache --limit 500GB", "storeds stage --list", finds=True
)
def stage(
    url: Annotated[
        str | None, typer.Argument(metavar="[STORE]", help="A store that is read from a local copy.")
    ] = None,
    path: Annotated[str | None, typer.Option(help="The folder of copies; by default $STOREDS_STAGE.")] = None,
    limit: Annotated[str | None, typer.Option(help="Bytes of all copies together, such as 500GB.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the copies.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read all copies, and compare them with their seals.")
    ] = False,
    remove: Annotated[str | None, typer.Option(help="Remove a copy by its name.")] = None,
    as_json: AsJson = False,
) -> None:
    """Copy a store to this machine, or look after the copies."""
    if sum((url is not None, list_, verify, remove is not None)) != 1:
        raise ConfigError("pass one of STORE, --list, --verify and --remove NAME")
    if url is not None:
        with progress("stage", quiet=as_json) as hook:
            found = ops.stage(url, path, limit=limit, progress=hook)
        if as_json:
            print_json(vars(found))
        else:
            state = "" if found.is_current else "; it cannot be reached, so this copy may be old"
            say(f"{found.local}: {byte_size(found.moved)} copied{state}")
    elif remove is not None:
        gone = ops.remove_staged(remove, path)
        print_json(gone._asdict()) if as_json else say(f"removed {gone.name}, {byte_size(gone.bytes)} of {gone.url}")
    elif verify:
        intact = ops.verify_staged(path)
        if as_json:
            print_json(intact)
        for name, is_intact in {} if as_json else intact.items():
            say(f"{name}: {'intact' if is_intact else 'damaged; storeds stage --remove it, and stage it again'}")
        if not all(intact.values()):
            raise typer.Exit(1)
    else:
        kept = ops.staged(path)
        if as_json:
            print_json([each._asdict() for each in kept])
            return
        print_table(
            {"name": "left", "bytes": "right", "complete": "left", "repaired": "right", "store": "left"},
            (
                (each.name, byte_size(each.bytes), "yes" if each.is_complete else "no", str(each.repaired), each.url)
                for each in kept
            ),
        )
