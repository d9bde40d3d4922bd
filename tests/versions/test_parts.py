"""One pack on many machines: parts in any order, and the same id whatever their number."""

from __future__ import annotations

import os
import signal
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import storeds
from _packing import storeds_command
from _writing import fork, wait_for
from make_store import make_store
from mask_files import write
from photographs import jpeg
from storeds import errors, ops


def folder(path: Path) -> Path:
    return write(path, {f"class{n % 3}/{n:02}.jpg": n for n in range(11)})


def table(path: Path) -> Path:
    folder(path.parent / "pictures")
    rows = [f'{{"path": "pictures/class{n % 3}/{n:02}.jpg", "label": {n % 4}, "weight": {n / 7}}}\n' for n in range(11)]
    path = path.with_suffix(".jsonl")
    path.write_text("".join(rows))
    return path


def shards(path: Path) -> Path:
    path = path.with_suffix(".tar")
    folder(path.with_suffix(""))
    with tarfile.open(path, "w") as tar:
        for n in range(11):
            for suffix, data in (("jpg", jpeg(n)), ("cls", str(n % 3).encode())):
                info = tarfile.TarInfo(f"{n:03}.{suffix}")
                info.size = len(data)
                file = path.with_name("member")
                file.write_bytes(data)
                tar.add(file, info.name)
    return path


def store(path: Path) -> str:
    return make_store({"n": "int"}, ({"n": n} for n in range(11)), f"hdf5://{path}.h5")


SOURCES: dict[str, Callable[[Path], Any]] = {"folder": folder, "table": table, "tar": shards, "store": store}


@pytest.mark.parametrize("kind", SOURCES)
def test_the_id_does_not_depend_on_the_number_of_parts(kind: str, tmp_path: Path) -> None:
    source = SOURCES[kind](tmp_path / "source")
    whole = storeds.pack(source, tmp_path / "whole.lmdb")
    for count in (1, 2, 5, 13):  # more parts than records: some are empty
        url = f"lmdb://{tmp_path}/{kind}-{count}/"
        for number in [*range(count, 0, -1)]:
            storeds.pack(source, url, part=f"{number}/{count}")
        version = ops.commit(url)
        assert (version.id, version.count) == (whole.id, 11)
        with storeds.open_backend(url) as parts, storeds.open_backend(tmp_path / "whole.lmdb") as one:
            assert parts.get_many(range(11)) == one.get_many(range(11))


def test_a_part_that_is_missing_is_named_and_run_again_alone(tmp_path: Path) -> None:
    source, url = folder(tmp_path / "source"), f"hdf5://{tmp_path}/store/"
    with pytest.raises(errors.ConfigError, match="has no parts to publish"):
        ops.commit(url)
    for number in (1, 3):
        storeds_command("pack", source, url, "--part", f"{number}/4")

    def die() -> None:
        storeds.pack(source, url, part="2/4", commit_every=1, progress=lambda _: os.kill(os.getpid(), signal.SIGKILL))

    assert wait_for(fork(die)) == -signal.SIGKILL
    with pytest.raises(
        errors.ConfigError, match=r"has 2 of 4 parts; missing: 2, 4. Run storeds pack … --part 2/4 again"
    ):
        ops.commit(url)
    with pytest.raises(errors.StoreNotFoundError):
        storeds.open_backend(url)
    for number in (2, 4, 3):  # what is there already stays
        storeds.pack(source, url, part=f"{number}/4")
    assert "version 1: append: 11 added" in storeds_command("commit", url)
    assert storeds.info(url).id == storeds.pack(source, tmp_path / "whole.h5").id
    with pytest.raises(errors.StoreExistsError, match="has these records already"):
        storeds.pack(source, url, part="3/4")


@pytest.mark.parametrize("part", ["0/4", "5/4", "1", "1/0", "a/b", "-1/2"])
def test_a_part_that_is_none_is_refused(part: str, tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match="part is a number of a part and how many there are, such as '3/16'"):
        storeds.pack(table(tmp_path / "source"), f"lmdb://{tmp_path}/store/", part=part)


def test_parts_are_of_a_versioned_store(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match="whose URL ends in a slash"):
        storeds.pack(table(tmp_path / "source"), tmp_path / "a.lmdb", part="1/2")


def test_a_source_in_two_numbers_of_parts_is_published_once(tmp_path: Path) -> None:
    source, url = folder(tmp_path / "source"), f"lmdb://{tmp_path}/store/"
    for part in ("1/3", "1/2", "2/2"):
        storeds.pack(source, url, part=part)
    assert ops.commit(url).count == 11
    for part in ("2/3", "3/3"):
        storeds.pack(source, url, part=part)
    with pytest.raises(errors.ConfigError, match="has no parts to publish"):
        ops.commit(url)
    assert storeds.info(url).count == 11
