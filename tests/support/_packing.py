"""Sources to pack, the command line, and the records of a store as lmdb and msgspec alone read them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import lmdb
import msgspec
from typer.testing import CliRunner

from photographs import jpeg
from storeds.cli import app


def storeds_command(*arguments: object, code: int = 0) -> str:
    """Run the command line; return what it prints."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


def stored_records(path: Path) -> list[dict[str, Any]]:
    """Return the records of a native LMDB store, read without storeds."""
    # A copy, because this process may have the store itself open.
    copied = shutil.copy(path, path.with_name(f"{path.name}.copied"))
    with lmdb.open(str(copied), subdir=False, readonly=True, lock=False, max_dbs=4) as environment:
        records = environment.open_db(b"records", create=False)
        with environment.begin(records) as transaction:
            return [msgspec.msgpack.decode(value[:-8]) for _, value in transaction.cursor()]  # a seal ends each


def photos(root: Path, *names: str) -> Path:
    """Write a photograph for each name, no two alike."""
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(jpeg(number))
    return root
