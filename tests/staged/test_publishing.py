"""A versioned store is written to an object store: members first, then the version, by one conditional put."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import storeds
from s3_server import BreakingProxy
from shares import FULL, SEED
from staged._stores import COUNT, numbers, write
from storeds import errors, ops

PLACES = itertools.count()


@pytest.fixture
def url(proxy: BreakingProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a new versioned store; what is written waits in the folder ``cache``."""
    monkeypatch.setenv("STOREDS_STAGE", str(tmp_path / "cache"))
    return f"s3://bucket/published-{next(PLACES)}/"


def names(bucket: Any, url: str) -> list[str]:
    """Return the objects of a store, as the server lists them."""
    import obstore

    prefix = url.removeprefix("s3://bucket/")
    return sorted(str(each["path"]).removeprefix(prefix) for batch in obstore.list(bucket, prefix) for each in batch)


def another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use another folder of copies from now on, as another machine does."""
    monkeypatch.setenv("STOREDS_STAGE", str(tmp_path / f"cache{next(PLACES)}"))


def test_all_commands_on_a_store_in_the_cloud_equal_those_on_a_local_one(
    url: str, bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "storeds")
    sources = [write(f"hdf5://{tmp_path}/{number}.h5", number * COUNT) for number in range(2)]
    for place in (url, f"lmdb://{tmp_path}/local/"):
        storeds.append(place, sources[0])
        another_machine(tmp_path, monkeypatch)
        storeds.append(place, sources[1])
        storeds.edit(place, set={"k1": {"n": -1}}, drop=["k0"], message="why")
        another_machine(tmp_path, monkeypatch)
        ops.compact(place)
        another_machine(tmp_path, monkeypatch)
        ops.rollback(place, 3)
    mine, theirs = ops.log(url), ops.log(f"lmdb://{tmp_path}/local/")
    assert [(each.action, each.id, each.count, each.message) for each in mine] == [
        (each.action, each.id, each.count, each.message) for each in theirs
    ]
    assert numbers(url) == [-1, *range(2, 2 * COUNT)]
    assert numbers(f"{url}?version=1") == [*range(COUNT)]
    assert "version 1 is open, and the last is 5" in caplog.text
    before = names(bucket, url)
    assert not ops.clean(url, older_than=0, yes=False).done
    assert names(bucket, url) == before
    ops.clean(url, older_than=0, yes=True)
    assert [name for name in names(bucket, url) if name.startswith("versions/")] == ["versions/00000005.json"]
    another_machine(tmp_path, monkeypatch)
    assert numbers(url) == [-1, *range(2, 2 * COUNT)]


@pytest.mark.parametrize("engine", ["lmdb", "hdf5"])
def test_parts_of_several_machines_are_committed_by_one(
    url: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = write(f"hdf5://{tmp_path}/a.h5"), f"{url}?engine={engine}"
    for part in (1, 3):
        another_machine(tmp_path, monkeypatch)
        storeds.pack(source, target, part=f"{part}/3")
    with pytest.raises(errors.ConfigError, match="missing: 2"):
        ops.commit(target)
    storeds.pack(source, target, part="2/3")
    another_machine(tmp_path, monkeypatch)
    assert ops.commit(target).engine == engine
    assert (storeds.info(url).id, numbers(url)) == (storeds.info(source).id, [*range(COUNT)])


def test_processes_that_append_at_once_lose_nothing(url: str, tmp_path: Path) -> None:
    code = """if True:
        import os, sys, storeds
        url, folder, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
        os.environ["STOREDS_STAGE"] = f"{folder}/machine{number}"
        for turn in range(3):
            at = number * 100 + turn * 10
            with storeds.open_writer(f"hdf5://{folder}/{at}.h5", {"n": "int"}) as writer:
                writer.append({"n": at + n} for n in range(10))
            storeds.append(url, f"hdf5://{folder}/{at}.h5")
    """
    count = 8 if FULL else 4
    appending = [
        subprocess.Popen([sys.executable, "-c", code, url, str(tmp_path), str(number)]) for number in range(count)
    ]
    assert [each.wait(300) for each in appending] == [0] * count
    expected = [number * 100 + turn * 10 + n for number in range(count) for turn in range(3) for n in range(10)]
    assert sorted(numbers(url)) == expected
    assert len(ops.log(url)) == 3 * count


def test_two_machines_that_write_the_same_records_at_once(
    url: str, bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import obstore

    source, elsewhere = write(f"hdf5://{tmp_path}/a.h5"), f"s3://bucket/published-{next(PLACES)}/"
    storeds.append(elsewhere, source)
    (member,) = [name for name in names(bucket, elsewhere) if name.startswith("members/")]
    theirs = obstore.get(bucket, f"{elsewhere.removeprefix('s3://bucket/')}{member}").bytes()

    def upload_there(_: object) -> None:  # while this machine writes
        obstore.put(bucket, f"{url.removeprefix('s3://bucket/')}{member}", bytes(theirs))

    with pytest.raises(errors.StoreExistsError, match=f"has another file {member}.*storeds stage --remove"):
        storeds.append(url, source, progress=upload_there)
    assert names(bucket, url) == sorted([member, *(name for name in names(bucket, url) if name.startswith("columns/"))])
    another_machine(tmp_path, monkeypatch)
    storeds.append(url, source)  # goes on with what is there
    assert numbers(url) == [*range(COUNT)]
    with pytest.raises(errors.StoreExistsError, match="has these records already"):
        storeds.append(url, source)


def test_without_a_folder_to_write_to_the_error_says_what_to_set(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STOREDS_STAGE")
    with pytest.raises(errors.ConfigError, match="is written to a local folder first: set STOREDS_STAGE to one"):
        storeds.append(url, write(f"hdf5://{tmp_path}/a.h5"))
    with pytest.raises(errors.ConfigError, match="is copied to a local folder first: set STOREDS_STAGE to one"):
        storeds.pack("s3://bucket/photographs/", f"lmdb://{tmp_path}/a.lmdb")
    monkeypatch.setenv("STOREDS_STAGE", str(tmp_path / "cache"))
    for write_file in (storeds.pack, storeds.convert):
        with pytest.raises(errors.ConfigError, match="in the cloud only versioned stores are written"):
            write_file(f"{tmp_path}/a.h5", "s3://bucket/one.h5")
    with pytest.raises(errors.ConfigError, match=r"'mongodb'; did you mean|engines of files"):
        storeds.append(f"{url}?engine=mongodb", write(f"hdf5://{tmp_path}/b.h5"))


def test_a_lost_answer_to_an_upload_is_no_conflict(url: str, proxy: BreakingProxy, tmp_path: Path) -> None:
    source = write(f"hdf5://{tmp_path}/a.h5")
    storeds.append(url, source)
    count = COUNT
    for number in range(1, 21) if FULL else range(11, 17):  # the last requests upload
        # The answer breaks off after a few bytes: its request was carried out.
        proxy.fault = lambda at, broken=proxy.connections + number: 7 if at == broken else None  # type: ignore[misc]
        more = write(f"hdf5://{tmp_path}/{number}.h5", 1000 * (number + 1), 10)
        count += 10
        assert storeds.append(url, more).count == count
    proxy.fault = lambda _: None
    assert len(numbers(url)) == count


def test_a_death_at_any_request_leaves_the_old_version_or_the_new_one(
    proxy: BreakingProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = write(f"hdf5://{tmp_path}/a.h5"), write(f"hdf5://{tmp_path}/b.h5", COUNT, 7)
    status, request, step = -signal.SIGKILL, SEED % 3, 1 if FULL else 4
    while status == -signal.SIGKILL:
        request += step
        another_machine(tmp_path, monkeypatch)
        url = f"s3://bucket/dying-{next(PLACES)}/"
        storeds.append(url, first)
        writing = os.environ["STOREDS_STAGE"]
        appending = subprocess.Popen([sys.executable, "-c", f"import storeds; storeds.append({url!r}, {second!r})"])
        at, pid = proxy.requested + request, appending.pid
        proxy.at_request = lambda number, at=at, pid=pid: os.kill(pid, signal.SIGKILL) if number == at else None  # type: ignore[misc]
        status = appending.wait(120)
        proxy.at_request = lambda _: None
        another_machine(tmp_path, monkeypatch)
        is_old = numbers(url) == [*range(COUNT)]
        monkeypatch.setenv("STOREDS_STAGE", writing)
        if is_old:
            storeds.append(url, second)
        assert numbers(url) == [*range(COUNT + 7)]
        assert [each.number for each in ops.log(url)] == [2, 1]
    assert status == 0
    assert request > 8
