"""Long lists of positions in the user's cache folder: not kept for ever. The tests of `where=` read them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from storeds.records.columns import cache_folder, index_path, load_index, save_index

DAY = 86_400


def test_lists_that_nobody_opened_for_a_month_are_removed_when_another_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOREDS_CACHE", str(tmp_path / "cache"))
    cache = cache_folder()
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
