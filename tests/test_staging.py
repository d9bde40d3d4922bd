"""Where a file store is built, and what may be in the way."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import storeds
from storeds import errors

FIELDS = {"x": "int"}
SCHEMES = ("lmdb", "hdf5")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_missing_folders_above_a_target_are_made(tmp_path: Path, scheme: str) -> None:
    with storeds.open_writer(f"{scheme}://{tmp_path}/a/b/store", FIELDS) as writer:
        writer.append([{"x": 1}])
    assert os.listdir(tmp_path / "a" / "b") == ["store"]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("path", ["/dev/null/store", "/proc/store", f"/tmp/{'n' * 250}"])
def test_a_place_that_cannot_be_written_is_named(scheme: str, path: str) -> None:
    with pytest.raises(errors.ConfigError, match="cannot be written"):
        storeds.open_writer(f"{scheme}://{path}", FIELDS)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_is_never_replaced(tmp_path: Path, scheme: str, overwrite: bool) -> None:
    with pytest.raises(errors.StoreExistsError, match="is a folder"):
        storeds.open_writer(f"{scheme}://{tmp_path}", FIELDS, overwrite=overwrite)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_file_that_is_no_store_is_never_replaced(tmp_path: Path, scheme: str) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(errors.StoreExistsError, match="no store, so it is not replaced"):
        storeds.open_writer(f"{scheme}://{tmp_path}/thesis.txt", FIELDS, overwrite=True)
    assert os.listdir(tmp_path) == ["thesis.txt"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_target_that_appears_meanwhile_is_not_replaced(tmp_path: Path, scheme: str) -> None:
    writer = storeds.open_writer(f"{scheme}://{tmp_path}/store", FIELDS)
    writer.append([{"x": 1}])
    (tmp_path / "store").write_text("somebody else's")
    with pytest.raises(errors.StoreExistsError, match="appeared while"):
        writer.publish()
    assert (tmp_path / "store").read_text() == "somebody else's"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_second_writer_is_refused_in_this_process_and_in_another(tmp_path: Path, scheme: str) -> None:
    url = f"{scheme}://{tmp_path}/store"
    code = f"import storeds; storeds.open_writer({url!r}, {FIELDS!r}, overwrite=True)"
    with storeds.open_writer(url, FIELDS) as writer:
        writer.append([{"x": 1}])
        with pytest.raises(errors.StoreExistsError, match="another writer of this process"):
            storeds.open_writer(url, FIELDS, overwrite=True)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "being written by another process" in done.stderr
    with storeds.open_backend(url) as backend:
        assert backend.get_many([0]) == [{"x": 1}]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_a_killed_writer_durably_wrote_is_resumed(tmp_path: Path, scheme: str) -> None:
    url = f"{scheme}://{tmp_path}/store"
    code = (
        f"import os, signal, storeds; writer = storeds.open_writer({url!r}, {FIELDS!r}, commit_every=4); "
        "writer.append({'x': n} for n in range(10)); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert not (tmp_path / "store").exists()
    with pytest.raises(errors.StoreExistsError, match="resume=True"):
        storeds.open_writer(url, FIELDS)
    with storeds.open_writer(url, FIELDS, resume=True) as writer:
        assert writer.count == 8
        writer.append({"x": n} for n in range(8, 10))
    with storeds.open_writer("memory://staging", FIELDS, overwrite=True) as reference:
        reference.append({"x": n} for n in range(10))
    assert storeds.info(url).id == storeds.info("memory://staging").id
    assert os.listdir(tmp_path) == ["store"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_overwrite_drops_what_a_killed_writer_left(tmp_path: Path, scheme: str) -> None:
    url = f"{scheme}://{tmp_path}/store"
    writer = storeds.open_writer(url, FIELDS)
    writer.append([{"x": 1}])
    writer.suspend()
    with storeds.open_writer(url, {"y": "float"}, overwrite=True) as fresh:
        fresh.append([{"y": 0.5}])
    with storeds.open_backend(url) as backend:
        assert backend.get_many([0]) == [{"y": 0.5}]
    assert os.listdir(tmp_path) == ["store"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_garbage_collector_may_end_one_writer_while_another_begins(
    tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[Any] = [storeds.open_writer(f"{scheme}://{tmp_path}/dropped", FIELDS)]
    dropped.append(dropped)  # a cycle, which nothing but the collector ends
    samestat = os.path.samestat

    def collect(*stats: os.stat_result) -> bool:
        nonlocal dropped
        dropped = []
        gc.collect()
        return samestat(*stats)

    gc.disable()
    try:
        with monkeypatch.context() as patched:
            patched.setattr(os.path, "samestat", collect)  # called where the list of active writers is locked
            storeds.open_writer(f"{scheme}://{tmp_path}/next", FIELDS).abort()
    finally:
        gc.enable()
    storeds.open_writer(f"{scheme}://{tmp_path}/dropped", FIELDS, resume=True).abort()
    assert os.listdir(tmp_path) == []
