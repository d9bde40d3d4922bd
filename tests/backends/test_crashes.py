"""A death in the middle of `pack`, `convert` and `export`: the target is as before or whole, and going on ends where it would have.

`test_staging`, `test_two_writers` and the kit kill writers of each engine at every step.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import storeds
from _writing import content, die_at_file_operation, server_pids
from make_store import make_store
from photographs import jpeg
from shares import FULL, SEED
from storeds import Meta, errors
from storeds.ops import Progress
from storeds.testing import run_mongod

COUNT = 30


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tree of photographs in three classes."""
    root = tmp_path_factory.mktemp("crashes") / "tree"
    for number in range(COUNT):
        file = root / f"class{number % 3}" / f"{number:03d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(jpeg(number % 12) + bytes([number]))
    return root


@pytest.fixture(scope="module")
def packed(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"lmdb://{tmp_path_factory.mktemp('packed')}/whole.lmdb"
    storeds.pack(tree, url)
    return url


def test_an_export_killed_at_any_file_operation_leaves_the_folder_of_before_or_the_whole_one(tmp_path: Path) -> None:
    old, new = (
        make_store({"image": "image", "label": "int"}, [{"image": jpeg(at), "label": at % 2} for at in range(first, 5)])
        for first in (3, 0)
    )
    out = tmp_path / "out"

    def export(url: str) -> dict[str, bytes]:
        storeds.export(url, out, format="folder", overwrite=True)
        return files_of(out)

    whole, before, status = export(new), export(old), -signal.SIGKILL
    step = 1 if FULL else 4
    number = SEED % step + 1 - step
    while status == -signal.SIGKILL:
        number += step
        status = die_at_file_operation(lambda: export(new), "out", number)
        assert files_of(out) in (before, whole)
        assert export(old) == before
    assert status == 0
    assert number > 10


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run(operation: str, tree: Path, packed: str, url: str, **options: Any) -> Meta:
    """Pack the tree, or convert the packed store, to `url`, in place of what is there."""
    if operation == "pack":
        return storeds.pack(tree, url, commit_every=7, overwrite=True, **options)
    return storeds.convert(packed, url, commit_every=7, overwrite=True, **options)


def test_a_server_killed_in_the_middle_is_one_error(tree: Path, packed: str, tmp_path: Path) -> None:
    data = tmp_path / "mongod"
    data.mkdir()

    def kill_server(state: Progress) -> None:
        for pid in server_pids(data):
            os.kill(pid, signal.SIGKILL)

    with pytest.raises(errors.UnavailableError), run_mongod(data) as uri:
        url = f"{uri}/db/store?serverSelectionTimeoutMS=500&timeoutMS=10000"
        make_store({"old": "int"}, [{"old": 1}], url)
        run("pack", tree, packed, url, progress=kill_server)
    with run_mongod(data) as uri:
        url = f"{uri}/db/store"
        assert content(url) not in (None, storeds.info(packed).id)
        assert "partial" in str(storeds.info(url).leftovers)
        assert run("pack", tree, packed, url, resume=True).id == storeds.info(packed).id
        assert content(url) == storeds.info(packed).id


@pytest.mark.parametrize(
    ("engine", "sent", "operation"), [("lmdb", signal.SIGINT, "pack"), ("hdf5", signal.SIGTERM, "convert")]
)
def test_ctrl_c_and_sigterm_keep_what_is_durable(
    tree: Path, packed: str, tmp_path: Path, engine: str, sent: signal.Signals, operation: str
) -> None:
    # The signal comes from inside, after the first batch, so that its moment is certain.
    url = f"{engine}://{tmp_path}/store"
    source = str(tree) if operation == "pack" else packed
    code = (
        "import os, signal, sys, storeds, storeds.cli as cli, storeds.ops as ops\n"
        # A shell that runs the tests in the background makes them ignore Ctrl-C.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"done = ops.{operation}\n"
        f"kill = lambda _: os.kill(os.getpid(), {int(sent)})\n"
        f"ops.{operation} = lambda *a, **k: done(*a, **{{**k, 'progress': kill}})\n"
        f"sys.argv = ['storeds', {operation!r}, {source!r}, {url!r}, '--commit-every', '7']\n"
        "cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}[sent], done.stderr
    assert content(url) is None
    assert run(operation, tree, packed, url, resume=True).id == storeds.info(packed).id
