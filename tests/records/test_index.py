"""Long lists of positions in the user's cache folder: not kept for ever. The tests of `where=` read them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from make_store import make_store
from photographs import jpeg
from storeds import StoreDataset
from storeds.records.cache import cache_folder, index_path, load_index, save_index

DAY = 86_400


@pytest.mark.parametrize("variable", ["STOREDS_CACHE", "XDG_CACHE_HOME", "HOME"])
def test_lists_are_removed_after_a_month(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    for name in ("STOREDS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    cache = cache_folder()
    assert cache.name == "storeds"
    old, used, new, linked = (index_path(name) for name in ("old", "used", "new", "linked"))
    for path in (old, used):
        save_index(path, np.arange(3))
    unfinished = cache / f"{old.stem}-abcd_123.fresh"
    unfinished.write_bytes(b"")
    digest = old.stem.partition("-")[2]
    names = ("notes.txt", "mine.npy", f"{digest}.npy", f"{old.name}.npy", "tmp1.fresh")
    users = [folder / name for folder in (cache.parent, cache) for name in names]
    for path in users:
        path.write_bytes(b"not ours")
    linked.symlink_to(users[0])
    (cache / f"storeds-{digest[::-1]}.npy").mkdir()
    for path in (old, used, unfinished, *users):
        os.utime(path, (time.time() - 40 * DAY,) * 2)
    assert load_index(used) is not None
    save_index(new, np.arange(3))
    assert set(cache.iterdir()) - {*users} == {used, new, linked, cache / f"storeds-{digest[::-1]}.npy"}
    assert {path.read_bytes() for path in users} == {b"not ours"}


def test_many_lists_are_seldom_looked_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOREDS_CACHE", str(tmp_path))
    looks, scandir = list[int](), os.scandir

    def counted(folder: Path) -> Any:
        looks.append(1)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", counted)
    for number in range(1_000):
        save_index(index_path(number), np.arange(1))
    assert len(looks) < 500


def test_a_user_without_a_home_folder_keeps_no_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> NoReturn:
        raise KeyError("no such user id")

    for name in ("STOREDS_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    url = make_store({"label": "int"}, ({"label": n % 2} for n in range(10)), f"lmdb://{tmp_path}/a.lmdb")
    assert len(StoreDataset(url, reader="array", where={"label": 1})) == 5
    (tmp_path / "photos/cat").mkdir(parents=True)
    (tmp_path / "photos/cat/a.jpg").write_bytes(jpeg(0))
    assert StoreDataset(tmp_path / "photos").classes == ["cat"]
    assert save_index(index_path("a"), np.arange(3)).tolist() == [0, 1, 2]
    assert load_index(index_path("a")) is None
