"""Long lists of positions in the user's cache folder: not kept for ever. The tests of `where=` read them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from storeds.records.cache import cache_folder, index_path, load_index, save_index

DAY = 86_400


@pytest.mark.parametrize("variable", ["STOREDS_CACHE", "XDG_CACHE_HOME", "HOME"])
def test_lists_that_nobody_opened_for_a_month_are_removed_when_another_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
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
