"""Long lists of positions in the user's cache folder: found again, never taken for others, not kept for ever."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from storeds.records.columns import cache_folder, index_path, load_index, save_index

DAY = 86_400


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOREDS_CACHE", str(tmp_path / "cache"))
    return cache_folder()


def test_what_was_saved_is_found_by_its_key_and_by_no_other() -> None:
    save_index(index_path("lmdb:///a", "build", {"split": "train"}), np.arange(5))
    found = load_index(index_path("lmdb:///a", "build", {"split": "train"}))
    assert found is not None
    assert found.tolist() == [0, 1, 2, 3, 4]
    assert load_index(index_path("lmdb:///a", "build", {"split": "val"})) is None


def test_lists_that_nobody_opened_for_a_month_are_removed_when_another_is_saved(cache: Path) -> None:
    old, used, new = (index_path(name) for name in ("old", "used", "new"))
    for path in (old, used):
        save_index(path, np.arange(3))
        os.utime(path, (time.time() - 40 * DAY,) * 2)
    mine = cache / "notes.txt"
    mine.write_text("not ours")
    os.utime(mine, (0, 0))
    assert load_index(used) is not None
    save_index(new, np.arange(3))
    assert set(cache.iterdir()) == {used, new, mine}


def test_a_list_that_cannot_be_kept_is_given_as_it_is(cache: Path) -> None:
    cache.parent.mkdir(exist_ok=True)
    cache.write_text("a file where the folder would be")
    assert save_index(index_path("any"), np.arange(3)).tolist() == [0, 1, 2]
