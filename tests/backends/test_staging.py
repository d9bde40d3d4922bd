"""Where a file store is built, and what may be in the way."""

from __future__ import annotations

import errno
import gc
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import pytest

import storeds
from _writing import die_at_file_operation
from make_store import make_store
from shares import FULL, SEED
from storeds import errors
from storeds.backends.staging import Staging

FIELDS = {"x": "int"}
SCHEMES = ("lmdb", "hdf5")


def write_and_be_killed(url: str) -> int:
    """Append ten records in another process, which is killed with eight of them durable; return its exit code."""
    code = (
        f"import os, signal, storeds; writer = storeds.open_writer({url!r}, {FIELDS!r}, commit_every=4); "
        "writer.append({'x': n} for n in range(10)); os.kill(os.getpid(), signal.SIGKILL)"
    )
    return subprocess.run([sys.executable, "-c", code], check=False).returncode


def records_of(url: str) -> list[Any]:
    with storeds.open_backend(url) as backend:
        return backend.get_many(range(len(backend)))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_place_that_cannot_hold_a_store_is_named(tmp_path: Path, scheme: str) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    (tmp_path / "one").symlink_to("other")
    (tmp_path / "other").symlink_to("one")
    cases: list[tuple[object, type[Exception], str]] = [
        ("/dev/null/store", errors.ConfigError, "cannot be written"),
        ("/proc/store", errors.ConfigError, "cannot be written"),
        (f"/tmp/{'n' * 250}", errors.ConfigError, "cannot be written"),
        (tmp_path, errors.StoreExistsError, "is a folder"),
        (tmp_path / "one", errors.StoreExistsError, "in a circle"),
        (tmp_path / "thesis.txt", errors.StoreExistsError, "no store, so it is not replaced"),
    ]
    for path, error, reported in cases:
        for overwrite in (False, True):
            with pytest.raises(error, match=reported):
                storeds.open_writer(f"{scheme}://{path}", FIELDS, overwrite=overwrite)
    assert sorted(os.listdir(tmp_path)) == ["one", "other", "thesis.txt"]
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_target_that_appears_meanwhile_is_not_replaced(tmp_path: Path, scheme: str) -> None:
    writer = storeds.open_writer(f"{scheme}://{tmp_path}/store", FIELDS)
    writer.append([{"x": 1}])
    (tmp_path / "store").write_text("somebody else's")
    with pytest.raises(errors.StoreExistsError, match="appeared while"):
        writer.publish()
    assert (tmp_path / "store").read_text() == "somebody else's"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_second_writer_is_refused_by_any_name(tmp_path: Path, scheme: str) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "alias").symlink_to("real")
    real, alias = (f"{scheme}://{tmp_path}/{name}/store" for name in ("real", "alias"))
    make_store(FIELDS, [{"x": 0}], real)
    with storeds.open_writer(real, FIELDS, overwrite=True) as writer:
        writer.append([{"x": 1}])
        for url in (alias, real):  # each attempt opens and closes the lock file, which must not release the lock
            assert f"process {os.getpid()} on" in str(storeds.info(url).writer)
            with pytest.raises(errors.StoreExistsError, match="is being written by another writer of this process"):
                storeds.open_writer(url, FIELDS, overwrite=True)
        code = f"import storeds; storeds.open_writer({alias!r}, {FIELDS!r}, overwrite=True)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert f"being written by process {os.getpid()} on {socket.gethostname()}, since 20" in done.stderr
        assert "if it is dead" in done.stderr
    assert records_of(alias) == [{"x": 1}]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_a_next_writer_wrote_meanwhile_stays(tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url, folder = f"{scheme}://{tmp_path}/store", tmp_path / ".store.partial"
    unlink = os.unlink
    nexts: list[int] = []

    def unlink_and_begin(path: Any, **options: Any) -> None:
        unlink(path, **options)
        if not nexts and not (folder / "lock").exists():
            nexts.append(0)
            nexts[0] = write_and_be_killed(url)

    writer = storeds.open_writer(url, FIELDS)
    writer.append([{"x": 1}])
    writer.flush()
    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", unlink_and_begin)
        writer.abort()
    assert nexts == [-signal.SIGKILL]
    with storeds.open_writer(url, FIELDS, resume=True) as writer:
        assert writer.count == 8


@pytest.mark.parametrize(("scheme", "links"), [("lmdb", True), ("hdf5", False)])
def test_a_death_after_publishing_changes_no_published_file(
    tmp_path: Path, scheme: str, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, fields = f"{scheme}://{tmp_path}/store", {"blob": "bytes"}
    records = [{"blob": bytes([at]) * 40_000} for at in range(60)]

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    writer = storeds.open_writer(url, fields, overwrite=not links)
    writer.append(records)
    with monkeypatch.context() as patched:
        if not links:
            patched.setattr(os, "link", refuse)
        patched.setattr(Staging, "drop", lambda _: None)  # as if it died
        published = writer.publish()
    os.link(tmp_path / "store", tmp_path / "kept")
    before = (tmp_path / "kept").read_bytes()
    # Dying once more before anything is durable leaves no more claims than there is data.
    storeds.open_writer(url, fields, overwrite=True, resume=True).suspend()
    with storeds.open_writer(url, fields, overwrite=True, resume=True) as writer:
        assert writer.count in ((0,) if links else (0, 60))  # the log of HDF5 outlives the file that was built from it
        assert storeds.info(url).build == published.build
        writer.append(records[writer.count :])
    assert (tmp_path / "kept").read_bytes() == before
    assert storeds.info(url).id == published.id
    assert sorted(os.listdir(tmp_path)) == ["kept", "store"]


@pytest.mark.parametrize(
    ("scheme", "exists", "links"),
    [
        ("lmdb", True, {"home/store": "{}/big/store"}),
        ("hdf5", False, {"home/store": "../big/store"}),
        ("hdf5", True, {"home/store": "other", "home/other": "../big/store"}),
        ("lmdb", False, {"home": "real", "real/store": "../big/store"}),
    ],
    ids=["a link", "a dangling link", "a link to a link", "links in folder and name"],
)
def test_links_are_written_through(tmp_path: Path, scheme: str, links: dict[str, str], exists: bool) -> None:
    url, real = f"{scheme}://{tmp_path}/home/store", f"{scheme}://{tmp_path}/big/store"
    (tmp_path / "big").mkdir()
    if exists:
        make_store(FIELDS, [{"x": 1}], real)
    for name, target in links.items():
        if target == "real":
            (tmp_path / "real").mkdir()
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(target.format(tmp_path))
    writer = storeds.open_writer(url, FIELDS, commit_every=1, overwrite=exists)
    writer.append([{"x": 2}])
    assert (tmp_path / "big/.store.partial").is_dir()
    with pytest.raises(errors.StoreExistsError, match="is being written by"):
        storeds.open_writer(real, FIELDS, overwrite=True)
    if exists:
        assert str(os.getpid()) in str(storeds.info(url).writer)
    writer.suspend()
    with storeds.open_writer(real, FIELDS, resume=True, overwrite=exists) as writer:  # the same write by its other name
        assert writer.count == 1
        writer.append([{"x": 3}])
    assert records_of(real) == records_of(url) == [{"x": 2}, {"x": 3}]
    assert os.listdir(tmp_path / "big") == ["store"]
    for name, target in links.items():
        assert os.readlink(tmp_path / name) == target.format(tmp_path)


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mount a file system of so many bytes at `folder` (as root) and give it."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        gc.collect()  # a mapping that is open would keep it busy
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.share(1)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_disk_of_any_size_gives_one_error_and_with_room_the_work_goes_on(tmp_path: Path, scheme: str) -> None:
    fields = {"key": "str", "blob": "bytes"}
    records = [{"key": str(at), "blob": bytes([at]) * 3000} for at in range(60)]
    failed = 0  # first where it begins, then where it appends, then where it publishes
    for kib in (12, 20, 100, 196, 200, 204, 208, 212, 216, 316, 600):
        with small_disk(tmp_path / f"disk{kib}", f"{kib}k") as disk:
            url = f"{scheme}://{disk}/store"
            try:
                writer = storeds.open_writer(url, fields, commit_every=10)
                writer.append(records)
                writer.publish()
            except errors.StoredsError as error:
                failed += 1
                assert re.search(f"the disk is full.*the tmpfs file system at {disk} has ", str(error))
                assert not (disk / "store").exists()
                subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
                with storeds.open_writer(url, fields, resume=True) as writer:
                    writer.append(records[writer.count :])
            assert records_of(url) == records
            assert os.listdir(disk) == ["store"]
    assert 4 < failed < 11


CAUSES = {
    errno.EACCES: "allow this user to write",
    errno.EPERM: "allow this user to write",
    errno.EROFS: "mount the file system for writing",
    errno.ENOSPC: "the disk is full.*make room",
    errno.EDQUOT: "make room, or ask for a larger quota",
    errno.EFBIG: "larger files",
    errno.EMFILE: "ulimit -n",
    errno.ENFILE: "fs.file-max",
    errno.ENOMEM: "free memory",
    errno.EIO: "check the disk",
    errno.ESTALE: "mount the file system again",
    errno.ENOTDIR: "a folder of its path is a file",
}


@pytest.mark.parametrize("code", CAUSES, ids=errno.errorcode.get)
def test_a_failed_system_call_names_cause_and_advice(
    tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    url = f"{SCHEMES[code % 2]}://{tmp_path}/store"
    writer = storeds.open_writer(url, FIELDS)
    writer.append([{"x": 1}])
    for call, work in (("mkdir", lambda: storeds.open_writer(f"{url}2", FIELDS)), ("fsync", writer.publish)):
        with monkeypatch.context() as patched:
            patched.setattr(os, call, refuse)
            with pytest.raises(errors.StoredsError, match=CAUSES[code]) as caught:
                work()
        assert os.strerror(code) in str(caught.value)
        assert ("make room" in str(caught.value)) == (code in (errno.ENOSPC, errno.EDQUOT))
    assert "resume=True" in str(caught.value)


@pytest.mark.parametrize(("scheme", "resume"), [("lmdb", False), ("hdf5", True)])
def test_a_death_at_any_file_operation_is_survived(tmp_path: Path, scheme: str, resume: bool) -> None:
    url, fields = f"{scheme}://{tmp_path}/store", {"key": "str", "blob": "bytes"}

    def write(count: int, **options: bool) -> None:
        with storeds.open_writer(url, fields, commit_every=4, **options) as writer:
            writer.append({"key": str(at), "blob": bytes(9000)} for at in range(writer.count, count))

    def suspend() -> None:
        writer = storeds.open_writer(url, fields, commit_every=4, overwrite=True)
        writer.append({"key": str(at), "blob": bytes(9000)} for at in range(8))
        writer.suspend()

    write(3)
    step = 1 if FULL else 8
    status, number = -signal.SIGKILL, SEED % step + 1 - step
    while status == -signal.SIGKILL:
        number += step
        suspend()
        status = die_at_file_operation(lambda: write(10, overwrite=True), "store", number)
        assert storeds.info(url).count in (3, 10)
        write(11, overwrite=True, resume=resume)
        assert storeds.info(url).count == 11
        assert os.listdir(tmp_path) == ["store"]
        write(3, overwrite=True)
    assert status == 0
    assert number > 15


def edit_records(edit: Callable[[Any], object]) -> Callable[[Path], None]:
    """Return a function that changes the records of an unfinished LMDB file."""

    def change(file: Path) -> None:
        with lmdb.open(str(file), subdir=False, lock=False, max_dbs=3) as env:
            records = env.open_db(b"records", create=False)
            with env.begin(write=True, db=records) as txn:
                edit(txn)

    return change


def edit_bytes(edit: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda file: file.write_bytes(edit(file.read_bytes()))


@pytest.mark.parametrize(
    ("scheme", "damage", "says"),
    [
        ("lmdb", edit_bytes(lambda _: b"x" * 9000), "is damaged"),
        ("lmdb", edit_records(lambda txn: txn.put((3).to_bytes(8, "big"), b"other")), "record 3 of .* is damaged"),
        ("lmdb", edit_records(lambda txn: txn.delete((9).to_bytes(8, "big"))), "has 9 of its 10 records"),
        ("hdf5", edit_bytes(lambda log: log[:-9]), "is damaged"),
        ("hdf5", edit_bytes(lambda log: log[:31] + b"x" + log[32:]), "record 1 of .* is damaged"),
        ("hdf5", edit_bytes(lambda _: b""), "has 0 of its 10 records"),
    ],
)
def test_a_damaged_unfinished_write_is_refused(
    tmp_path: Path, scheme: str, damage: Callable[[Path], object], says: str
) -> None:
    url = f"{scheme}://{tmp_path}/store"
    writer = storeds.open_writer(url, FIELDS)
    writer.append({"x": n} for n in range(10))
    writer.flush()
    writer.suspend()
    damage(tmp_path / ".store.partial" / {"lmdb": "building.mdb", "hdf5": "log"}[scheme])
    with pytest.raises(errors.FormatError, match=f"{says}; start again"):
        storeds.open_writer(url, FIELDS, resume=True)
    with storeds.open_writer(url, FIELDS, overwrite=True) as writer:
        assert writer.count == 0
        writer.append([{"x": 5}])
    assert records_of(url) == [{"x": 5}]
    assert os.listdir(tmp_path) == ["store"]


@pytest.mark.parametrize(("scheme", "end"), [("lmdb", "publish"), ("hdf5", "abort")])
def test_only_files_of_storeds_are_removed_from_the_folder_of_a_writer(tmp_path: Path, scheme: str, end: str) -> None:
    folder = Staging(f"{tmp_path}/store", "", "").folder
    thesis = folder / "thesis" / "thesis.txt"
    thesis.parent.mkdir(parents=True)
    thesis.write_text("years of work")
    (tmp_path / "home").symlink_to(thesis.parent)
    (folder / "link").symlink_to(tmp_path / "home")
    writer = storeds.open_writer(f"{scheme}://{tmp_path}/store", FIELDS, overwrite=True)
    writer.append([{"x": 1}])
    getattr(writer, end)()
    assert thesis.read_text() == "years of work"
    assert {path.name for path in folder.iterdir()} <= {"thesis", "link", "lock"}
